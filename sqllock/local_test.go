package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestLocalLocksAreRefused: where locks exclude only the sessions of one node, or nobody, they are
// refused by the name of the product. The servers are stand-ins, which answer as the product does.
func TestLocalLocksAreRefused(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*product.Protocol{"Advisory": product.PostgreSQL, "Named": product.MySQL} {
		for _, product := range p.Products {
			for _, sign := range product.Signs {
				t.Run(name+", "+product.Name+", "+sign.Asked, func(t *testing.T) {
					t.Parallel()
					server := &fakeServer{query: func(query string, _ []driver.NamedValue) ([]driver.Value, error) {
						for _, question := range p.Questions {
							switch {
							case query == sign.Asked:
								return []driver.Value{sign.Says}, nil
							case query == question:
								return []driver.Value{sign.Asked, sign.Says}, nil
							}
						}
						return []driver.Value{"app", "8.0.36", int64(0)}, nil
					}}
					var err error
					if name == "Named" {
						_, err = NewNamed(t.Context(), server.open(t), nil)
					} else {
						_, err = NewAdvisory(t.Context(), server.open(t), &AdvisoryOptions{SessionPooler: true})
					}
					if product.Locks.String() != "refused" {
						testkit.Check(t, err)
						return
					}
					if !errors.Is(err, ErrLocal) || !strings.Contains(err.Error(), product.Name) || !strings.Contains(err.Error(), product.Why) || !strings.Contains(err.Error(), product.Source) {
						t.Errorf("got %v", err)
					}
				})
			}
		}
	}
}

// TestUnidentifiedServer: a server that lets nobody in, and so cannot be asked what it is, is not
// taken for a product on which locks exclude all others.
func TestUnidentifiedServer(t *testing.T) {
	t.Parallel()
	db := openDB(t, "pgx", "postgres://stranger@"+postgres().Addr()+"/postgres")
	if _, err := NewAdvisory(t.Context(), db, &AdvisoryOptions{SessionPooler: true}); !errors.Is(err, ErrServer) {
		t.Errorf("got %v; want ErrServer", err)
	}
}

// TestLocalLockTx: a transaction of CockroachDB gets no lock, at read committed, too.
func TestLocalLockTx(t *testing.T) {
	t.Parallel()
	server := &fakeServer{query: func(query string, _ []driver.NamedValue) ([]driver.Value, error) {
		if strings.Contains(query, "NOT LIKE '%CockroachDB%'") {
			return []driver.Value{nil}, nil
		}
		return []driver.Value{"CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)"}, nil
	}}
	for name, lock := range map[string]func(Tx) error{
		"LockTx":    func(tx Tx) error { return LockTx(t.Context(), tx, IntKey(1), nil) },
		"TryLockTx": func(tx Tx) error { return TryLockTx(t.Context(), tx, IntKey(1), nil) },
	} {
		tx, err := server.open(t).BeginTx(t.Context(), nil)
		testkit.Must(t, err)
		if err := lock(tx); !errors.Is(err, ErrLocal) || !strings.Contains(err.Error(), "CockroachDB") {
			t.Errorf("%s: %v", name, err)
		}
		testkit.Check(t, tx.Rollback())
	}
}

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
