//go:build nightly

package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// As a guest in a file that is the application's, in whose transactions leases are
// settled, in whatever state the key is.
func TestConformanceInTransactions(t *testing.T) {
	conform(t, Options{Shared: true}, func(t testing.TB, s *Store) store.Store { return newNoting(t, s) })
}

// noting is a Store that settles leases in transactions.
type noting struct {
	*Store
	b *transactor
}

func newNoting(t testing.TB, s *Store) *noting {
	db, err := s.OpenDB("synchronous(OFF)")
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &noting{Store: s, b: newTransactor(s, db)}
}

// Settle settles what it can in a transaction each, and has the store settle the rest:
// places are not for transactions.
func (n *noting) Settle(ctx context.Context, xs []store.Settlement, errs []error) error {
	for i := range xs {
		if err := n.settle(ctx, &xs[i]); err == nil {
			continue
		}
		if err := n.Store.Settle(ctx, xs[i:i+1], errs[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (n *noting) settle(ctx context.Context, x *store.Settlement) error {
	tx, err := n.b.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.(*appTransaction).open(); err != nil {
		return err
	}
	return tx.Commit(ctx, *x)
}

// The lease cannot be renewed while the file is locked, and so bounds the transaction.
// (It is by the host's clock that a client knows that its lease is over, and a claim
// that takes longer than its lease is none. TestLeaseIsNotRenewedMeanwhile needs no time.)
func TestLeaseBoundsTheTransaction(t *testing.T) {
	l := newLedger(t, testFile(t), &Options{LockWait: time.Minute})
	_, err := OnceTx(t.Context(), l.c, l.tr, "k", &dibs.OnceOptions{TTL: 2 * time.Second}, func(ctx context.Context, tx *sql.Tx) (string, error) {
		answer, err := book(ctx, tx, "k")
		<-ctx.Done() // it takes its time, and notices late
		return answer, err
	})
	if !errors.Is(err, store.ErrLost) {
		t.Error(err)
	}
	l.want("k", 0)
	if _, err := l.once("k"); err != nil {
		t.Error(err)
	}
	l.want("k", 1)
}
