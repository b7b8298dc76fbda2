package dibs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

var errCut = errors.New("the line is cut")

func TestLeaseIsRenewedWhileTheWorkRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 30 * time.Second})
		var leases []*dibs.Lease
		for i := range 100 {
			l, err := c.Acquire(t.Context(), strconv.Itoa(i), nil)
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, l)
		}
		time.Sleep(5*time.Minute + time.Second)
		for _, l := range leases {
			if err := l.Err(); err != nil {
				t.Fatalf("after ten leases: %v", err)
			}
			if err := l.Release(); err != nil {
				t.Fatal(err)
			}
		}
		if _, renews, _ := s.counts(); renews != 30 {
			t.Errorf("%d renewal calls for 100 leases of 30 s in 5 minutes; want 30, one each third for all", renews)
		}
		empty(t, s)
		time.Sleep(time.Hour) // a renewer that went on would be seen
		if _, renews, _ := s.counts(); renews != 30 {
			t.Errorf("renewals went on after the release")
		}
	})
}

func TestLeaseThatIsTakenAwayIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, &dibs.Options{TTL: 30 * time.Second})
		start := time.Now()
		err := c.Do(t.Context(), "k", func(ctx context.Context) error {
			if _, err := s.ForceRelease(t.Context(), dibs.Key{Name: "k"}, ""); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Do returned %v", err)
		}
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("the holder noticed after %v, want a third of the lease", d)
		}
		empty(t, s)
	})
}

func TestLossIsReportedThoughTheSectionSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		err := c.Do(t.Context(), "k", func(ctx context.Context) error {
			_, err := s.ForceRelease(t.Context(), dibs.Key{Name: "k"}, "")
			return err
		})
		if !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Do returned %v", err)
		}
	})
}

func TestTrustEndsBeforeAnybodyElseCanHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		line := newFaulty(s)
		cut := newClient(t, line, &dibs.Options{TTL: 30 * time.Second})
		other := newClient(t, s, nil)
		lease, err := cut.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		claimed := time.Now()
		line.set(func(string) error { return errCut }, nil)
		var lost time.Time
		var wg sync.WaitGroup
		wg.Go(func() {
			<-lease.Context().Done()
			lost = time.Now()
			if cause := context.Cause(lease.Context()); !errors.Is(cause, dibs.ErrLost) {
				t.Errorf("the context ended with %v", cause)
			}
		})
		next, err := other.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		taken := time.Now()
		wg.Wait()
		if d := lost.Sub(claimed); d < 29*time.Second || d >= 30*time.Second {
			t.Errorf("trust ended %v after the claim; want just under 30 s", d)
		}
		if d := taken.Sub(claimed); d < 30*time.Second || d > 31*time.Second {
			t.Errorf("the successor entered after %v; want 30 to 31 s", d)
		}
		if next.Attempt() != 2 || next.Fence() <= lease.Fence() {
			t.Errorf("attempt %d, fence %d after %d", next.Attempt(), next.Fence(), lease.Fence())
		}
		line.set(nil, nil)
		if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("the loser's Release returned %v", err)
		}
		if err := lease.Complete(t.Context(), nil, time.Hour); err != nil && !errors.Is(err, dibs.ErrLost) {
			t.Errorf("the loser's Complete returned %v", err)
		}
		synctest.Wait()
		if err := next.Err(); err != nil {
			t.Errorf("the loser took the winner's lease away: %v", err)
		}
		if err := next.Release(); err != nil {
			t.Error(err)
		}
	})
}

func TestRenewalSurvivesAPassingFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 30 * time.Second})
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		s.set(func(string) error { return errCut }, nil)
		time.Sleep(25 * time.Second)
		s.set(nil, nil)
		time.Sleep(time.Minute)
		if err := lease.Err(); err != nil {
			t.Errorf("lost to a fault of 25 s under a lease of 30 s: %v", err)
		}
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
	})
}

func TestStoreThatHangsDoesNotHoldTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 3 * time.Second})
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		hang := make(chan struct{})
		s.set(func(string) error { <-hang; return errCut }, nil)
		start := time.Now()
		<-lease.Context().Done()
		if d := time.Since(start); d >= 3*time.Second {
			t.Errorf("the context ended after %v", d)
		}
		s.set(nil, nil)
		close(hang)
		if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Release returned %v", err)
		}
	})
}

func TestComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		o := &dibs.AcquireOptions{MaxAge: dibs.AnyAge, Fingerprint: dibs.Fingerprint{1}}
		lease, err := c.Acquire(t.Context(), "k", o)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Complete(t.Context(), []byte("the answer"), time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(); err != nil {
			t.Errorf("Release after Complete returned %v", err)
		}
		time.Sleep(time.Minute)
		_, err = c.Acquire(t.Context(), "k", o)
		done, ok := errors.AsType[*dibs.DoneError](err)
		if !ok || !errors.Is(err, dibs.ErrDone) || string(done.Record.Data) != "the answer" ||
			done.Record.Age != time.Minute || done.Record.Left != 59*time.Minute {
			t.Errorf("got %+v", err)
		}
		other := *o
		other.Fingerprint = dibs.Fingerprint{2}
		if _, err := c.Acquire(t.Context(), "k", &other); !errors.Is(err, dibs.ErrMismatch) {
			t.Errorf("another fingerprint got %v", err)
		}
		fresh := *o
		fresh.MaxAge = 30 * time.Second
		again, err := c.Acquire(t.Context(), "k", &fresh)
		if err != nil {
			t.Fatalf("a record of a minute answered a claim that takes 30 s: %v", err)
		}
		if err := again.Release(); err != nil {
			t.Error(err)
		}
		if err := again.Complete(t.Context(), nil, 0); err == nil {
			t.Error("a retention of 0 was accepted")
		}
		time.Sleep(time.Hour)
		after, err := c.Acquire(t.Context(), "k", o)
		if err != nil {
			t.Fatalf("after its retention: %v", err)
		}
		if err := after.Release(); err != nil {
			t.Error(err)
		}
	})
}

// TestCompleteWhoseAnswerWasLost: asked again, it tells that the record was
// written, though the renewals since then found no lease.
func TestCompleteWhoseAnswerWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		f := newFaulty(s)
		c := newClient(t, f, nil)
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		f.set(nil, func(verb string) error {
			if verb == "settle" {
				return errors.New("the connection was reset")
			}
			return nil
		})
		if err := lease.Complete(t.Context(), []byte("answer"), time.Hour); !errors.Is(err, dibs.ErrStore) {
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
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
	})
}

func TestWaitersAreAnsweredByTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		o := &dibs.AcquireOptions{MaxAge: dibs.AnyAge}
		lease, err := c.Acquire(t.Context(), "k", o)
		if err != nil {
			t.Fatal(err)
		}
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
		if err := lease.Complete(t.Context(), []byte("x"), time.Hour); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if d := time.Since(start); d != 0 {
			t.Errorf("the waiters learned it %v later", d)
		}
	})
}

func TestAtMostOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		o := &dibs.AcquireOptions{MaxAge: dibs.AnyAge, AtMostOnce: true}
		lease, err := c.Acquire(t.Context(), "k", o)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Abandon(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1000 * time.Hour)
		_, err = c.Acquire(t.Context(), "k", o)
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
		lease, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{AtMostOnce: true})
		if err != nil {
			t.Fatal(err)
		}
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
// off tells the next one, who goes on from what was saved.
func TestLostLeaseEndsAsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		line := newFaulty(s)
		c, other := newClient(t, line, &dibs.Options{TTL: 10 * time.Second}), newClient(t, s, nil)
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Save(t.Context(), []byte("half")); err != nil {
			t.Fatal(err)
		}
		line.set(func(verb string) error {
			if verb == "renew" {
				return errCut
			}
			return nil
		}, nil)
		<-lease.Context().Done()
		if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Release returned %v", err)
		}
		synctest.Wait()
		next, err := other.Acquire(t.Context(), "k", &dibs.AcquireOptions{NoWait: true})
		if err != nil {
			t.Fatalf("what is left of the lease was not given back: %v", err)
		}
		if next.Attempt() != 2 || string(next.Progress()) != "half" {
			t.Errorf("attempt %d with progress %q", next.Attempt(), next.Progress())
		}
		if err := next.Release(); err != nil {
			t.Error(err)
		}
		empty(t, s)
	})
}

func TestProgressReachesTheSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		first, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Save(t.Context(), []byte("half")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // renewals leave it alone
		if err := first.Abandon(t.Context()); err != nil {
			t.Fatal(err)
		}
		second, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(second.Progress(), []byte("half")) || second.Attempt() != 2 {
			t.Errorf("progress %q, attempt %d", second.Progress(), second.Attempt())
		}
		if err := first.Save(t.Context(), []byte("late")); err == nil {
			t.Error("a settled lease saved progress")
		}
		if err := second.Save(t.Context(), make([]byte, dibs.MaxProgress+1)); err == nil {
			t.Error("progress over the limit was accepted")
		}
		if err := second.Release(); err != nil {
			t.Error(err)
		}
		third, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if third.Progress() != nil || third.Attempt() != 1 {
			t.Errorf("after a clean end: progress %q, attempt %d", third.Progress(), third.Attempt())
		}
		if err := third.Release(); err != nil {
			t.Error(err)
		}
	})
}

func TestFromContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, newStore(t), nil)
		if _, ok := dibs.FromContext(t.Context()); ok {
			t.Error("a context without a lease has one")
		}
		err := c.Do(t.Context(), "k", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			l, ok := dibs.FromContext(ctx)
			if !ok || l.Key().Name != "k" || l.Fence() == 0 || len(l.ID()) != 16 {
				return fmt.Errorf("got %+v, %v", l, ok)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
