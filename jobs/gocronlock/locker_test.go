package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs/gocronlock"
	"github.com/dibs-go/dibs/store"
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

func newElector(t *testing.T, store dibs.Store, skew time.Duration) *gocronlock.Elector {
	t.Helper()
	e, err := gocronlock.NewElector(t.Context(), newClient(t, store), "leader", skew)
	testkit.Must(t, err)
	t.Cleanup(e.Close)
	return e
}

// TestElectorClocksDiffer: the leader stops just after it has run a tick. The host whose
// clock is behind does not run that tick again, and runs the next one.
func TestElectorClocksDiffer(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		var k ticks
		job := k.run(100 * time.Millisecond)
		time.Sleep(time.Second)
		first, second := newElector(t, store, 5*time.Second), newElector(t, store, 5*time.Second)
		stop := host(t, 0, gocron.WithDistributedElector(first), job)
		host(t, -2*time.Second, gocron.WithDistributedElector(second), job)
		time.Sleep(10*time.Minute - 500*time.Millisecond) // half a second after a tick
		stop()
		first.Close()
		if err := first.IsLeader(t.Context()); err == nil {
			t.Error("it leads after Close")
		}
		time.Sleep(10 * time.Minute)
		testkit.Must(t, second.IsLeader(t.Context()))
		if missed := k.check(t, 20); missed > 0 {
			t.Errorf("%d ticks were missed", missed)
		}
	})
}

// TestElectorLoses: a leader that cannot reach the store stops a skew before another host
// leads, and leads again in its turn.
func TestElectorLoses(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		broken := &failing{Store: store}
		first, second := newElector(t, broken, 5*time.Second), newElector(t, store, 5*time.Second)
		broken.down.Store(true)
		var last time.Time
		for second.IsLeader(t.Context()) != nil {
			if first.IsLeader(t.Context()) == nil {
				last = time.Now()
			}
			time.Sleep(10 * time.Millisecond)
		}
		if gap := time.Since(last); gap < 5*time.Second || gap > dibs.DefaultTTL {
			t.Errorf("the second leader began %v after the first one's last tick", gap)
		}
		if err := first.IsLeader(t.Context()); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("the first leader says %v", err)
		}
		broken.down.Store(false)
		time.Sleep(time.Minute)
		second.Close()
		time.Sleep(time.Minute)
		testkit.Must(t, first.IsLeader(t.Context()))
	})
}

// TestElectorCloses: Close waits for the skew only if there was a tick within it, and does
// not wait for leadership.
func TestElectorCloses(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		first, second := newElector(t, store, 5*time.Second), newElector(t, store, 5*time.Second)
		testkit.Must(t, first.IsLeader(t.Context()))
		time.Sleep(3 * time.Second)
		for _, c := range []struct {
			elector *gocronlock.Elector
			takes   time.Duration
		}{{second, 0}, {first, 2 * time.Second}, {first, 0}, {newElector(t, store, 5*time.Second), 0}} {
			start := time.Now()
			c.elector.Close()
			if took := time.Since(start); took != c.takes {
				t.Errorf("Close took %v, want %v", took, c.takes)
			}
		}
	})
}

func TestNewElector(t *testing.T) {
	simulate(t, func(t *testing.T, store *memstore.Store) {
		down := &failing{Store: store}
		down.down.Store(true)
		closed := newClient(t, store)
		testkit.Must(t, closed.Close())
		for name, c := range map[string]*dibs.Client{"no client": nil, "no store": newClient(t, down), "closed": closed} {
			if _, err := gocronlock.NewElector(t.Context(), c, "leader", 0); err == nil {
				t.Errorf("%s: there is no error", name)
			}
		}
		for _, skew := range []time.Duration{-1, dibs.DefaultTTL} {
			if _, err := gocronlock.NewElector(t.Context(), newClient(t, store), "leader", skew); err == nil {
				t.Errorf("a skew of %v: there is no error", skew)
			}
		}
		client := newClient(t, store)
		e, err := gocronlock.NewElector(t.Context(), client, "leader", 0)
		testkit.Must(t, err)
		testkit.Must(t, client.Close())
		if err := e.IsLeader(t.Context()); !errors.Is(err, dibs.ErrClosed) {
			t.Errorf("after the client was closed it says %v", err)
		}
		e.Close()
		down.down.Store(false)
	})
}

// simulate runs test in simulated time, with a store.
func simulate(t *testing.T, test func(*testing.T, *memstore.Store)) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(nil)
		testkit.Must(t, err)
		test(t, store)
	})
}

func newClient(t *testing.T, store dibs.Store) *dibs.Client {
	t.Helper()
	c, err := dibs.New(store, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// skewed is a clock that is ahead by a time.
type skewed struct {
	clockwork.Clock
	by time.Duration
}

func (c skewed) Now() time.Time { return c.Clock.Now().Add(c.by) }

// host starts a scheduler whose clock is ahead by that time. It runs the job each minute.
func host(t *testing.T, ahead time.Duration, exclude gocron.SchedulerOption, job func(tick time.Time)) (stop func()) {
	t.Helper()
	clock := skewed{clockwork.NewRealClock(), ahead}
	s, err := gocron.NewScheduler(exclude, gocron.WithClock(clock), gocron.WithLocation(time.UTC))
	testkit.Must(t, err)
	task := gocron.NewTask(func() { job(clock.Now().Truncate(time.Minute)) })
	_, err = s.NewJob(gocron.CronJob("* * * * *", false), task, gocron.WithName("report"))
	testkit.Must(t, err)
	s.Start()
	stop = sync.OnceFunc(func() { testkit.Must(t, s.Shutdown()) })
	t.Cleanup(stop)
	return stop
}

// ticks counts the runs of each tick, and notes runs of the job at the same time.
type ticks struct {
	mu      sync.Mutex
	ran     map[time.Time]int
	running int
	overlap bool
	over    bool
}

// run is a job that takes that time.
func (k *ticks) run(takes time.Duration) func(time.Time) {
	return func(tick time.Time) {
		k.mu.Lock()
		if k.over {
			k.mu.Unlock()
			return
		}
		if k.ran == nil {
			k.ran = map[time.Time]int{}
		}
		k.ran[tick]++
		k.running++
		k.overlap = k.overlap || k.running > 1
		k.mu.Unlock()
		time.Sleep(takes)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.running--
	}
}

// end lets the running jobs end, and no other begin, because the Shutdown of gocron would
// stop the simulated time while it waits for a job.
func (k *ticks) end(takes time.Duration) {
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	time.Sleep(takes)
	synctest.Wait()
}

// check fails the test if a tick ran twice, if jobs ran at the same time, or if fewer ticks
// ran. It returns how many ticks between the first one and the last one did not run.
func (k *ticks) check(t *testing.T, least int) (missed int) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	var first, last time.Time
	for tick, n := range k.ran {
		if n != 1 {
			t.Errorf("the tick %s ran %d times", tick.Format(time.TimeOnly), n)
		}
		if first.IsZero() || tick.Before(first) {
			first = tick
		}
		if tick.After(last) {
			last = tick
		}
	}
	if len(k.ran) < least || k.overlap {
		t.Errorf("%d ticks ran, at the same time %v; want %d", len(k.ran), k.overlap, least)
	}
	return int(last.Sub(first)/time.Minute) + 1 - len(k.ran)
}

// failing is a store that cannot be reached while down is true, and whose leases cannot be
// settled while unsettled is true.
type failing struct {
	dibs.Store
	down, unsettled atomic.Bool
}

var errDown = errors.New("connection refused")

func (s *failing) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if s.down.Load() {
		return errDown
	}
	return s.Store.Claim(ctx, claims, answers)
}

func (s *failing) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if s.down.Load() {
		return errDown
	}
	return s.Store.Renew(ctx, renewals, errs)
}

func (s *failing) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if s.down.Load() || s.unsettled.Load() {
		return fmt.Errorf("settle: %w", errDown)
	}
	return s.Store.Settle(ctx, settlements, errs)
}

// TestReadme: its code is that of the example, and each test that it names is there.
func TestReadme(t *testing.T) {
	house.Readme(t, 60)
	house.ReadmeRuns(t)
}
