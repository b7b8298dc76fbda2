package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/internal/servertest"
)

func init() { sql.Register("opaque", opaqueDriver{}) }

// opaqueDriver is pgx's in a coat: it stands for other drivers, which do not tell the
// number of a session.
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

// Locks that belong to a session are refused behind a pooler that hands sessions on.
func TestPoolerRefused(t *testing.T) {
	t.Parallel()
	session := servertest.PgBouncer(t, postgres(), &servertest.PgBouncerOptions{Mode: "session"})
	const plain = "default_query_exec_mode"
	tests := []struct {
		name, driver, url string
		options           *AdvisoryOptions
		want              error
	}{
		{"pgx, transaction mode", "pgx", withParameter(pooler().URL(), plain, "exec"), nil, ErrPooler},
		{"another driver, transaction mode", "opaque", withParameter(pooler().URL(), plain, "exec"), nil, ErrPooler},
		{"session mode", "pgx", session.URL(), nil, ErrPooler},
		{"session mode, as is said", "pgx", session.URL(), &AdvisoryOptions{SessionPooler: true}, nil},
		{"pgx", "pgx", postgres().URL(), nil, nil},
		{"another driver", "opaque", postgres().URL(), nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := openDB(t, test.driver, test.url)
			a, err := NewAdvisory(t.Context(), db, test.options)
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v; want %v", err, test.want)
			}
			if err != nil {
				return
			}
			key := ownKey()
			err = a.Do(t.Context(), key, nil, func(context.Context) error {
				if n := advisoryLocks(t, key); n != 1 {
					t.Errorf("%d have it", n)
				}
				return nil
			})
			if n := advisoryLocks(t, key); err != nil || n != 0 {
				t.Errorf("%v, and %d have it still", err, n)
			}
		})
	}
}

// A pooler that ends a session just when it is looked at is noticed all the same.
func TestPoolerEndsSession(t *testing.T) {
	t.Parallel()
	pid := int64(0)
	server := &fakeServer{
		query: func(sql string) ([]driver.Value, error) {
			if strings.Contains(sql, "pg_backend_pid") {
				pid++
				return []driver.Value{pid}, nil
			}
			return []driver.Value{pid > 2}, nil // the third one lives
		},
		closed: func() {},
	}
	if _, err := NewAdvisory(t.Context(), server.open(t), nil); !errors.Is(err, ErrPooler) {
		t.Errorf("got %v", err)
	}
}

// A pool that comes to a pooler later takes nothing there.
func TestPoolerNoticedLater(t *testing.T) {
	t.Parallel()
	a, key := newAdvisory(t, nil), ownKey()
	a.pins.db = openDB(t, "pgx", withParameter(pooler().URL(), "default_query_exec_mode", "exec"))
	for _, lock := range []func(context.Context, AdvisoryKey, *LockOptions) (*Lock, error){a.Lock, a.TryLock} {
		if _, err := lock(t.Context(), key, nil); !errors.Is(err, ErrPooler) {
			t.Error(err)
		}
	}
	if n := advisoryLocks(t, key); n != 0 {
		t.Errorf("%d have it", n)
	}
}
