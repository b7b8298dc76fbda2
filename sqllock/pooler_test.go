package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

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

// A server without a pooler is none, even where the driver does not give the number of
// its session.
func TestNoPooler(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) *sql.DB{
		"pgx": func(t *testing.T) *sql.DB { return openDB(t, "pgx", postgres().URL()) }, "another driver": opaqueDB,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := NewAdvisory(t.Context(), open(t), nil)
			testkit.Must(t, err)
			heldOnce(t, a)
		})
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

// A pooler that ends a session just when it is looked at is noticed all the same.
func TestPoolerEndsSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pid := int64(0)
		server := &fakeServer{
			query: func(sql string, _ []driver.NamedValue) ([]driver.Value, error) {
				if strings.Contains(sql, "pg_backend_pid") {
					pid++
					return []driver.Value{pid}, nil
				}
				return []driver.Value{pid > 2}, nil // the third one lives
			},
		}
		if _, err := NewAdvisory(t.Context(), server.open(t), nil); !errors.Is(err, ErrPooler) {
			t.Errorf("got %v", err)
		}
	})
}
