package dibs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestCompleteWhoseAnswerWasLost: called again, it reports that the record was
// written, though the renewals since then found no lease.
func TestCompleteWhoseAnswerWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		f := newFaulty(s)
		c := newClient(t, f, nil)
		lease := acquire(t, c, "k", nil)
		f.set(nil, func(verb string) error {
			if verb == "settle" {
				return errors.New("the connection was reset")
			}
			return nil
		})
		if err := lease.Complete(t.Context(), []byte("answer"), time.Hour); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		// Another call without an answer does not make that forgotten.
		if err := lease.Abandon(t.Context()); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		f.set(nil, nil)
		time.Sleep(dibs.DefaultTTL / 2)
		if err := lease.Err(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("after a renewal the lease said %v", err)
		}
		if err := lease.Complete(t.Context(), []byte("answer"), time.Hour); err != nil {
			t.Errorf("the record is there, and Complete returned %v", err)
		}
		testkit.Check(t, lease.Release())
	})
}

// TestCompleteAgainWhenTrustIsOver: a settlement whose outcome is unknown is not sent again when the
// lease is not trusted any more, even if the store still has the lease.
func TestCompleteAgainWhenTrustIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		f := newFaulty(s)
		c := newClient(t, f, nil)
		lease := acquire(t, c, "k", nil)
		until := lease.Until()
		f.set(func(string) error { return errors.New("the connection was reset") }, nil)
		if err := lease.Complete(t.Context(), []byte("answer"), time.Hour); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Until(until)) // the store gives the holder a little more
		f.set(nil, nil)
		if held, err := newClient(t, s, nil).Held(t.Context(), "k"); !held || err != nil {
			t.Fatalf("the store does not have the lease: %v", err)
		}
		if err := lease.Complete(t.Context(), []byte("answer"), time.Hour); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("a lease that is not trusted was completed: %v", err)
		}
		if _, ok, err := c.Record(t.Context(), "k"); ok || err != nil {
			t.Errorf("there is a record: %v, %v", ok, err)
		}
	})
}

func TestWaitersAreAnsweredByTheRecord(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		o := &dibs.AcquireOptions{MaxAge: dibs.AnyAge}
		lease := acquire(t, c, "k", o)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, err := c.Acquire(t.Context(), "k", o)
				if done, ok := errors.AsType[*dibs.DoneError](err); !ok || string(done.Record.Data) != "x" {
					t.Errorf("got %v", err)
				}
			})
		}
		time.Sleep(time.Minute)
		start := time.Now()
		testkit.Must(t, lease.Complete(t.Context(), []byte("x"), time.Hour))
		wg.Wait()
		if d := time.Since(start); d != 0 {
			t.Errorf("the waiters learned it %v later", d)
		}
	})
}

func TestAtMostOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		o := &dibs.AcquireOptions{MaxAge: dibs.AnyAge, AtMostOnce: true}
		lease := acquire(t, c, "k", o)
		testkit.Must(t, lease.Abandon(t.Context()))
		time.Sleep(1000 * time.Hour)
		_, err := c.Acquire(t.Context(), "k", o)
		if u, ok := errors.AsType[*dibs.UnknownError](err); !ok || u.ID != lease.ID() {
			t.Fatalf("got %v, want the outcome of %s unknown", err, lease.ID())
		}
		if _, err := c.Held(t.Context(), "k"); !errors.Is(err, dibs.ErrUnknown) {
			t.Errorf("Held returned %v", err)
		}
		if ok, err := s.Resolve(t.Context(), dibs.Key{Name: "k"}, lease.ID(), []byte("settled"), time.Hour); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, err = c.Acquire(t.Context(), "k", o); !errors.Is(err, dibs.ErrDone) {
			t.Errorf("got %v", err)
		}
	})
}

// A lease with AtMostOnce that its holder must think lost, though the store
// still has it, leaves an unknown outcome and not a free key.
func TestAtMostOnceIsNotReleasedWhenTrustIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 10 * time.Second})
		lease := acquire(t, c, "k", &dibs.AcquireOptions{AtMostOnce: true})
		s.set(func(string) error { return errCut }, nil)
		<-lease.Context().Done()
		s.set(nil, nil)
		if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Release returned %v", err)
		}
		synctest.Wait()
		if _, err := c.Acquire(t.Context(), "k", nil); !errors.Is(err, dibs.ErrUnknown) {
			t.Errorf("got %v", err)
		}
	})
}

// TestLostLeaseEndsAsAbandoned: a holder that finds out too late that it was cut
// off gives the next one what it saved.
func TestLostLeaseEndsAsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		line := newFaulty(s)
		c, other := newClient(t, line, &dibs.Options{TTL: 10 * time.Second}), newClient(t, s, nil)
		lease := acquire(t, c, "k", nil)
		testkit.Must(t, lease.Save(t.Context(), []byte("half")))
		line.set(failing("renew", errCut), nil)
		<-lease.Context().Done()
		if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Release returned %v", err)
		}
		synctest.Wait()
		next, err := other.TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatalf("what is left of the lease was not given back: %v", err)
		}
		if next.Attempt() != 2 || string(next.Progress()) != "half" {
			t.Errorf("attempt %d with progress %q", next.Attempt(), next.Progress())
		}
		testkit.Check(t, next.Release())
		empty(t, s)
	})
}

func TestReleaseThatFailsIsMadeUpFor(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		err := c.Do(t.Context(), "k", func(context.Context) error {
			s.set(func(string) error { return errCut }, nil)
			return nil
		})
		if err != nil {
			t.Errorf("the section succeeded and Do returned %v", err)
		}
		s.set(nil, nil)
		time.Sleep(2 * time.Second)
		empty(t, s)
	})
}

func TestLeaseIsUndone(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		p, _, err := c.Reserve(t.Context(), "k", time.Hour, nil)
		testkit.Must(t, err)
		for range 2 {
			lease, err := c.TryRedeem(t.Context(), p, nil)
			if err != nil || lease.Attempt() != 1 {
				t.Fatalf("%v, %v; want an attempt that comes after none", lease, err)
			}
			testkit.Must(t, lease.Undo(t.Context()))
			if err := lease.Release(); err != nil {
				t.Errorf("Release after Undo: %v", err)
			}
		}
		testkit.Check(t, c.CancelPlace(t.Context(), p))
		empty(t, s)
	})
}

func TestRefusedReleaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, &answering{s.Store, dibs.ErrFull, 0}, nil)
		lease := acquire(t, c, "k", &dibs.AcquireOptions{TTL: 3 * time.Second})
		if err := lease.Release(); !errors.Is(err, dibs.ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		if lease.Err() == nil {
			t.Error("the lease's context continues")
		}
		next, err := newClient(t, s, nil).Acquire(t.Context(), "k", &dibs.AcquireOptions{Wait: 5 * time.Second})
		if err != nil {
			t.Fatalf("the lease is renewed though it was released: %v", err)
		}
		testkit.Check(t, next.Release())
	})
}
