//go:build nightly

package sqlitestore

import (
	"context"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/storetest"
)

// As a guest in a file that is the application's, in whose transactions leases are
// settled, in whatever state the key is.
func TestConformanceInTransactions(t *testing.T) {
	conform(t, Options{Shared: true}, nil, func(t testing.TB, s *Store) dibs.Store { return newNoting(t, s, false) })
}

// The same, and the process dies each time before it does what follows. Nobody is
// woken then; all else holds.
func TestConformanceBehind(t *testing.T) {
	lacks := map[storetest.Feature]string{storetest.Notifier: "processes that die wake nobody"}
	conform(t, Options{}, lacks, func(t testing.TB, s *Store) dibs.Store {
		return struct {
			dibs.Store
			dibs.Inspector
			dibs.Pruner
			dibs.Batcher
		}{newNoting(t, s, true), s, s, s}
	})
}

// noting is a Store that settles leases in transactions.
type noting struct {
	*Store
	b *transactor
}

func newNoting(t testing.TB, s *Store, behind bool) *noting {
	db, err := s.OpenDB("synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	b := newTransactor(s, db)
	if behind {
		b.committed = func(dibs.Key, bool) {}
	}
	return &noting{Store: s, b: b}
}

// Settle settles what it can in a transaction of all, as several runs would one after
// the other, and has the store settle the rest: places are not for transactions.
func (n *noting) Settle(ctx context.Context, xs []dibs.Settlement, errs []error) error {
	d, err := n.b.Begin(ctx)
	if err != nil {
		return err
	}
	defer d.Rollback()
	tx, err := d.(*jointTransaction).open()
	if err != nil {
		return err
	}
	var rest []int
	for i := range xs {
		if n.checkSettlement(&xs[i]) != nil {
			rest = append(rest, i)
			continue
		}
		result, err := tx.ExecContext(ctx, n.b.note, n.noteArgs(&xs[i])...)
		if err != nil {
			return err
		}
		if rows, err := result.RowsAffected(); err != nil {
			return err
		} else if rows == 0 {
			rest = append(rest, i)
		}
	}
	d.(*jointTransaction).own.Store(true)
	if err := tx.Commit(); err != nil {
		return err
	}
	d.Rollback() // it is over
	for i := range xs {
		n.b.committed(xs[i].Key, true)
	}
	if len(rest) == 0 {
		return nil
	}
	others, answers := make([]dibs.Settlement, len(rest)), make([]error, len(rest))
	for i, j := range rest {
		others[i] = xs[j]
	}
	err = n.Store.Settle(ctx, others, answers)
	for i, j := range rest {
		errs[j] = answers[i]
	}
	return err
}
