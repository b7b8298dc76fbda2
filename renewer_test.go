package dibs_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func TestLeaseIsRenewedWhileTheWorkRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 30 * time.Second})
		var leases []*dibs.Lease
		for i := range 100 {
			l, err := c.Acquire(t.Context(), strconv.Itoa(i), nil)
			testkit.Must(t, err)
			leases = append(leases, l)
		}
		time.Sleep(5*time.Minute + time.Second)
		for _, l := range leases {
			if err := l.Err(); err != nil {
				t.Fatalf("after ten leases: %v", err)
			}
			testkit.Must(t, l.Release())
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

func TestTrustEndsBeforeAnotherHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		line := newFaulty(s)
		cut := newClient(t, line, &dibs.Options{TTL: 30 * time.Second})
		other := newClient(t, s, nil)
		lease := acquire(t, cut, "k", nil)
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
		next := acquire(t, other, "k", nil)
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
		testkit.Check(t, next.Release())
	})
}

func TestRenewalSurvivesAPassingFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 30 * time.Second})
		lease := acquire(t, c, "k", nil)
		s.set(func(string) error { return errCut }, nil)
		time.Sleep(25 * time.Second)
		s.set(nil, nil)
		time.Sleep(time.Minute)
		if err := lease.Err(); err != nil {
			t.Errorf("lost to a fault of 25 s under a lease of 30 s: %v", err)
		}
		testkit.Check(t, lease.Release())
	})
}

func TestStoreThatHangsDoesNotHoldTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 3 * time.Second})
		lease := acquire(t, c, "k", nil)
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

// TestRenewalDuringASettlement: a renewal that finds no lease, because the store has just
// settled it, is not a loss.
func TestRenewalDuringASettlement(t *testing.T) {
	for name, settle := range map[string]func(*dibs.Lease) error{
		"Release":  (*dibs.Lease).Release,
		"Complete": func(l *dibs.Lease) error { return l.Complete(context.Background(), nil, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFaulty(newStore(t))
				var last dibs.Event
				c := newClient(t, s, &dibs.Options{TTL: 3 * time.Second, Observe: func(_ context.Context, e dibs.Event) { last = e }})
				lease := acquire(t, c, "k", nil)
				s.set(nil, func(verb string) error {
					if verb == "settle" {
						time.Sleep(2 * time.Second) // until after the next renewal
					}
					return nil
				})
				if err := settle(lease); err != nil {
					t.Errorf("got %v", err)
				}
				if _, renews, _ := s.counts(); renews == 0 {
					t.Fatal("there was no renewal meanwhile")
				}
				if cause := context.Cause(lease.Context()); errors.Is(cause, dibs.ErrLost) || last.Kind == dibs.EventLost {
					t.Errorf("the context ended with %v, the event is %s", cause, last.Kind)
				}
			})
		})
	}
}

// TestManyLeasesTakeFewCalls: docs/operate/incidents.md says how many calls the renewals of a process take:
// four for each third of a lease at most, for up to 512 keys.
func TestManyLeasesTakeFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(newStore(t))
		c := newClient(t, f, nil)
		var leases []*dibs.Lease
		for i := range 512 {
			leases = append(leases, acquire(t, c, strconv.Itoa(i), nil))
			time.Sleep(dibs.DefaultTTL / 512)
		}
		time.Sleep(dibs.DefaultTTL) // those that are due soon share calls by now
		_, before, _ := f.counts()
		time.Sleep(10 * dibs.DefaultTTL)
		_, after, _ := f.counts()
		if n := after - before; n > 120 || n < 30 {
			t.Errorf("%d calls renewed 512 leases for ten times their TTL; want 30 to 120", n)
		}
		for _, l := range leases {
			release(t, l)
		}
	})
}

// TestTrustCountsFromWhatWasSent: the store counts a lease from when the call arrives, and the answer
// may take long. So the holder counts from when the call was sent.
func TestTrustCountsFromWhatWasSent(t *testing.T) {
	const ttl, slow = 30 * time.Second, 4 * time.Second
	for name, confirm := range map[string]func(*testing.T, *dibs.Lease){
		"the claim": nil,
		"a renewal": func(*testing.T, *dibs.Lease) { time.Sleep(ttl/3 + slow) },
		"Save": func(t *testing.T, l *dibs.Lease) {
			time.Sleep(ttl / 6)
			testkit.Must(t, l.Save(t.Context(), []byte("half")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFaulty(newStore(t))
				c := newClient(t, s, &dibs.Options{TTL: ttl})
				var arrived atomic.Pointer[time.Time] // the last call that the store confirmed
				s.set(nil, func(verb string) error {
					if verb != "settle" {
						now := time.Now()
						arrived.Store(&now)
						time.Sleep(slow)
					}
					return nil
				})
				lease := acquire(t, c, "k", nil)
				if confirm != nil {
					confirm(t, lease)
				}
				s.set(func(string) error { return errCut }, nil)
				<-lease.Context().Done()
				if held := time.Since(*arrived.Load()); held >= ttl || held < ttl-2*time.Second {
					t.Errorf("trust ended %v after the store confirmed the lease for %v", held, ttl)
				}
				s.set(nil, nil)
			})
		})
	}
}
