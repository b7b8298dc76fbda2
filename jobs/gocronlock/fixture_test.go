package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

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
