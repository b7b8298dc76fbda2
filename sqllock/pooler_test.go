package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func init() { sql.Register("opaque", opaqueDriver{}) }

// opaqueDriver wraps pgx's driver. It stands for other drivers, which do not give the number of
// a session.
type opaqueDriver struct{}

func (opaqueDriver) Open(name string) (driver.Conn, error) {
	c, err := stdlib.GetDefaultDriver().Open(name)
	if err != nil {
		return nil, err
	}
	return &opaqueConn{c.(*stdlib.Conn)}, nil
}

type opaqueConn struct{ *stdlib.Conn }

// opaqueDB opens a pool with such a driver.
func opaqueDB(t *testing.T) *sql.DB { return openDB(t, "opaque", postgres().URL()) }

// A server without a pooler is none. A driver that does not tell the number of its session is
// refused, unless the caller says that there is no pooler.
func TestNoPooler(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		db      *sql.DB
		options *AdvisoryOptions
	}{
		"pgx":            {openDB(t, "pgx", postgres().URL()), nil},
		"another driver": {opaqueDB(t), &AdvisoryOptions{SessionPooler: true}},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := NewAdvisory(t.Context(), tt.db, tt.options)
			testkit.Must(t, err)
			heldOnce(t, a)
		})
	}
	if _, err := NewAdvisory(t.Context(), opaqueDB(t), nil); !errors.Is(err, ErrPooler) || !strings.Contains(err.Error(), "SessionPooler") {
		t.Errorf("another driver: %v", err)
	}
}

// heldOnce fails the test unless one session has a lock while it is held, and none
// afterwards.
func heldOnce(t *testing.T, a *Advisory) {
	t.Helper()
	key := ownKey()
	err := a.Do(t.Context(), key, nil, func(context.Context) error {
		if n := advisoryLocks(t, key); n != 1 {
			t.Errorf("%d have it", n)
		}
		return nil
	})
	if n := advisoryLocks(t, key); err != nil || n != 0 {
		t.Errorf("%v, and %d have it still", err, n)
	}
}
