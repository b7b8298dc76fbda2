package sqllock

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

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
