package dibs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/journal"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// While the outcome of one transaction is unknown, no other is committed under its lease.
func TestCompleteInOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, l := newClient(t, s, nil), journal.New(s.Store, journal.Unanswered)
		lease := acquire(t, c, "k", nil)
		complete := func() error {
			tx, err := l.Begin(t.Context()) // the lease's context ends with the first
			testkit.Must(t, err)
			journal.Write(store.WithTransaction(t.Context(), tx), "row")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return lease.CompleteIn(ctx, tx, []byte("done"), time.Hour)
		}
		s.set(func(string) error { return errCut }, nil)
		if err := complete(); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("with an unknown outcome the caller got %v", err)
		}
		s.set(nil, nil)
		if err := complete(); !errors.Is(err, dibs.ErrRolledBack) || len(l.Rows()) != 1 {
			t.Errorf("the second transaction got %v, and the journal has %q", err, l.Rows())
		}
		if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("a lease that was settled after all got %v", err)
		}
	})
}

// A transaction that says why it was rolled back leaves the lease as it is, whatever
// the reason.
func TestCompleteInLeavesTheLease(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		lease := acquire(t, c, "k", nil)
		err := lease.CompleteIn(t.Context(), refusal{&dibs.StoreError{Op: "settle", Err: errCut}}, nil, time.Hour)
		if !errors.Is(err, dibs.ErrRolledBack) || lease.Err() != nil {
			t.Errorf("got %v, and the lease has ended: %v", err, lease.Err())
		}
		ended, end := context.WithCancel(t.Context())
		end()
		tx := &stuck{}
		err = lease.CompleteIn(ended, tx, nil, time.Hour)
		if !errors.Is(err, dibs.ErrRolledBack) || !errors.Is(err, context.Canceled) || !tx.over.Load() || lease.Err() != nil {
			t.Errorf("a commit that was not sent got %v, and the lease has ended: %v", err, lease.Err())
		}
		testkit.Check(t, lease.Release())
	})
}

// A renewal would wait for a transaction that has settled the lease and is not
// committed yet, so none is sent; a transaction that fails leaves a lease that is
// renewed again.
func TestNothingIsRenewedDuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 9 * time.Second})
		lease := acquire(t, c, "k", nil)
		renewals := 0
		err := lease.CompleteIn(t.Context(), slowCommit(func() {
			time.Sleep(8 * time.Second)
			s.mu.Lock()
			renewals = len(s.renews)
			s.mu.Unlock()
		}), nil, time.Hour)
		if !errors.Is(err, dibs.ErrRolledBack) || renewals != 0 {
			t.Errorf("got %v, and %d renewals were sent during the commit", err, renewals)
		}
		time.Sleep(20 * time.Second)
		if err := lease.Err(); err != nil {
			t.Errorf("after a commit that failed the lease has ended: %v", err)
		}
		testkit.Check(t, lease.Release())
	})
}

// slowCommit is a transaction whose commit takes a while and fails.
type slowCommit func()

func (wait slowCommit) Commit(context.Context, store.Settlement) error {
	wait()
	return dibs.ErrRolledBack
}

func (slowCommit) Rollback() {}

func (slowCommit) Conflicted(error) bool { return false }

func TestStepsAreOutsideOfTheTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c, l := newClient(t, s, nil), journal.New(s, journal.Conflicted)
		steps := 0
		_, err := dibs.OnceIn(t.Context(), c, l, "k", nil, func(ctx context.Context) (int, error) {
			journal.Write(ctx, "row")
			return dibs.Step(ctx, "charge", func(ctx context.Context) (int, error) {
				steps++
				if tx := store.TransactionFrom(ctx); tx != nil {
					t.Errorf("a step was given the transaction %v", tx)
				}
				return 7, nil
			})
		})
		if err != nil || steps != 1 || len(l.Rows()) != 1 {
			t.Errorf("got %v, %d steps, the journal has %q", err, steps, l.Rows())
		}
	})
}

// What Once remembers stays when the transaction around it is rolled back, so what it
// runs does not write there.
func TestOnceIsOutsideOfTheTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c, l := newClient(t, s, nil), journal.New(s)
		if _, err := dibs.OnceIn(t.Context(), c, l, "outer", nil, func(ctx context.Context) (int, error) {
			return dibs.Once(ctx, c, "inner", nil, func(ctx context.Context) (int, error) {
				if tx := store.TransactionFrom(ctx); tx != nil {
					t.Errorf("what is remembered by itself was given the transaction %v", tx)
				}
				return 7, nil
			})
		}); err != nil {
			t.Error(err)
		}
	})
}

// A caller that asks for the outcome of a commit does not wait for the rest of the transaction.
func TestCompleteInAsksBehindTheTransaction(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lease := acquire(t, c, "k", nil)
		tx := &stuck{}
		s.set(func(verb string) error {
			if verb == "settle" && !tx.over.Load() {
				return errCut // it has the row
			}
			return nil
		}, nil)
		err := lease.CompleteIn(t.Context(), tx, nil, time.Hour)
		if !errors.Is(err, dibs.ErrRolledBack) || errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
	})
}

// stuck is a transaction whose commit fails and leaves it open.
type stuck struct{ over atomic.Bool }

func (*stuck) Commit(context.Context, store.Settlement) error { return errCut }

func (tx *stuck) Rollback() { tx.over.Store(true) }

func (*stuck) Conflicted(error) bool { return false }

// TestCompleteInEndsTheTrust: while the outcome of a commit is looked for, the lease may be over.
func TestCompleteInEndsTheTrust(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lease, err := c.Acquire(t.Context(), "k", nil)
		testkit.Must(t, err)
		s.set(func(string) error { return errCut }, nil)
		ended := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			ended <- lease.CompleteIn(ctx, &stuck{}, nil, time.Hour)
		}()
		time.Sleep(time.Second)
		distrusted(t, lease)
		if err := <-ended; !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		s.set(nil, nil)
		release(t, lease) // which was not settled
	})
}
