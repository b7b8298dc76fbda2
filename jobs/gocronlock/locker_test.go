package gocronlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs/gocronlock"
	"github.com/dibs-go/dibs/stores/memstore"
)

func newLocker(t *testing.T, store dibs.Store) *gocronlock.Locker {
	t.Helper()
	l, err := gocronlock.NewLocker(newClient(t, store), 50*time.Second)
	testkit.Must(t, err)
	return l
}

// TestClocksDiffer: no tick runs on two hosts, although each job ends before the other
// host's clock comes to the tick.
func TestClocksDiffer(t *testing.T) {
	for _, ahead := range []time.Duration{0, 2 * time.Second, -2 * time.Second, 40 * time.Second} {
		t.Run(ahead.String(), func(t *testing.T) {
			simulate(t, func(t *testing.T, store *memstore.Store) {
				var k ticks
				time.Sleep(time.Second) // no tick comes at the start
				for _, by := range []time.Duration{0, ahead} {
					host(t, by, gocron.WithDistributedLocker(newLocker(t, store)), k.run(100*time.Millisecond))
				}
				time.Sleep(time.Hour)
				if missed := k.check(t, 59); missed > 0 {
					t.Errorf("%d ticks were missed", missed)
				}
			})
		})
	}
}

// TestLongJob: a job that takes longer than per, and longer than the time between two
// ticks, does not run on two hosts at the same time.
func TestLongJob(t *testing.T) {
	for _, takes := range []time.Duration{55 * time.Second, 61 * time.Second, 10 * time.Minute} {
		t.Run(takes.String(), func(t *testing.T) {
			simulate(t, func(t *testing.T, store *memstore.Store) {
				var k ticks
				for _, by := range []time.Duration{0, 2 * time.Second} {
					host(t, by, gocron.WithDistributedLocker(newLocker(t, store)), k.run(takes))
				}
				time.Sleep(time.Hour)
				k.end(takes)
				k.check(t, int(time.Hour/(takes+2*time.Minute)))
			})
		})
	}
}

// TestUnlock: the next Lock is refused until per is over since the start of the run, on all
// hosts, even if ctx has ended, or if the store did not answer at first.
func TestUnlock(t *testing.T) {
	for name, away := range map[string]time.Duration{"at once": 0, "the store is away": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, store *memstore.Store) {
				broken := &failing{Store: store}
				l, other := newLocker(t, broken), newLocker(t, store)
				ctx, cancel := context.WithCancel(t.Context())
				start := time.Now()
				lock, err := l.Lock(ctx, "report")
				testkit.Must(t, err)
				if _, err := other.Lock(t.Context(), "report"); !errors.Is(err, dibs.ErrHeld) {
					t.Errorf("Lock of a running job returned %v", err)
				}
				cancel()
				time.Sleep(20 * time.Second)
				broken.unsettled.Store(true)
				time.AfterFunc(away, func() { broken.unsettled.Store(false) })
				testkit.Must(t, lock.Unlock(ctx))
				for time.Since(start) < 49*time.Second {
					if _, err := other.Lock(t.Context(), "report"); !errors.Is(err, dibs.ErrDone) {
						t.Fatalf("%v after the start of the run, Lock returned %v", time.Since(start), err)
					}
					time.Sleep(time.Second)
				}
				time.Sleep(2 * time.Second)
				lock, err = other.Lock(t.Context(), "report")
				testkit.Must(t, err)
				testkit.Must(t, lock.Unlock(t.Context()))
			})
		})
	}
}

// TestUnlockWithoutStore: Unlock ends when the lease is lost.
func TestUnlockWithoutStore(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		broken := &failing{Store: store}
		lock, err := newLocker(t, broken).Lock(t.Context(), "report")
		testkit.Must(t, err)
		broken.down.Store(true)
		if err := lock.Unlock(t.Context()); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Unlock returned %v", err)
		}
		broken.down.Store(false)
	})
}

// TestLease: the job can see its lease, and that it is lost.
func TestLease(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		l := newLocker(t, store)
		if l.Lease("report") != nil {
			t.Error("there is a lease before Lock")
		}
		first, err := l.Lock(t.Context(), "report")
		testkit.Must(t, err)
		lease := l.Lease("report")
		_, err = store.ForceRelease(t.Context(), dibs.Key{Name: "report"}, "")
		testkit.Must(t, err)
		<-lease.Context().Done()
		second, err := l.Lock(t.Context(), "report")
		testkit.Must(t, err)
		if err := first.Unlock(t.Context()); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Unlock of a lost lease returned %v", err)
		}
		if now := l.Lease("report"); now == nil || now.Fence() <= lease.Fence() {
			t.Errorf("the lease of the second run is %v", now)
		}
		testkit.Must(t, second.Unlock(t.Context()))
		if l.Lease("report") != nil {
			t.Error("there is a lease after Unlock")
		}
	})
}

func TestNewLocker(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		if _, err := gocronlock.NewLocker(nil, time.Minute); err == nil {
			t.Error("a Locker without a client")
		}
		if _, err := gocronlock.NewLocker(newClient(t, store), 0); err == nil || !strings.Contains(err.Error(), "per is 0") {
			t.Errorf("a Locker without per: %v", err)
		}
	})
}
