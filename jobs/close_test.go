package jobs_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

func TestCancelledWhileItWaits(t *testing.T) {
	for _, last := range []bool{true, false} {
		simulate(t, func(t *testing.T, f *fixture) {
			m := f.mutex(nil)
			lease := f.held("k")
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- m.Run(ctx, jobs.Job{Kind: "test", ID: "1", Key: "k", Pool: jobs.Pool{Workers: 2}, Final: func(error) bool { return last }}, nothing)
			}()
			synctest.Wait()
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
			testkit.Must(t, lease.Release())
			synctest.Wait()
			busy, err := f.client().Held(t.Context(), "k")
			if err != nil || busy == last {
				t.Errorf("last %v: a place stands %v, %v", last, busy, err)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	for _, o := range []jobs.Options{{}, {Policy: jobs.Wait, Wait: time.Hour}, {Policy: jobs.Wait, Wait: 2500 * time.Millisecond}} {
		simulate(t, func(t *testing.T, f *fixture) {
			m := f.mutex(&o)
			patience := time.Hour
			if o.Wait != 2500*time.Millisecond {
				patience = 2500 * time.Millisecond
			}
			lease := f.held("k")
			start := time.Now()
			err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Pool: jobs.Pool{Workers: 2}, Patience: patience}, nothing)
			if _, ok := errors.AsType[*jobs.RequeueError](err); !ok || time.Since(start) != 2500*time.Millisecond {
				t.Errorf("%+v: %v after %v, want to come back after 2.5 s", o, err, time.Since(start))
			}
			testkit.Must(t, lease.Release())
		})
	}
}

// TestHalfOfAPoolWaits: at most half of the workers of a pool have a job that waits for
// its turn, whatever its key; all others come back, parked where the queue promotes them.
func TestHalfOfAPoolWaits(t *testing.T) {
	for workers, want := range map[int]int{0: 0, 1: 0, 2: 1, 5: 2, 10: 5} {
		simulate(t, func(t *testing.T, f *fixture) {
			m := f.mutex(nil)
			one, two := f.held("a"), f.held("b")
			came := make(chan error, 2*workers+2)
			run := func(i int, pool jobs.Pool, key string) {
				j := jobs.Job{Kind: "test", ID: strconv.Itoa(i), Key: key, Pool: pool, Promoted: i%2 == 0}
				err := m.Run(t.Context(), j, nothing)
				if back, ok := errors.AsType[*jobs.RequeueError](err); ok && back.Parked != j.Promoted {
					t.Errorf("promoted %v, and it comes back as %+v", j.Promoted, back)
				}
				came <- err
			}
			for i := range 2*workers + 2 {
				go run(i, jobs.Pool{Workers: workers}, []string{"a", "b"}[i%2])
			}
			synctest.Wait()
			if n := m.Stats().Waiting; n != want || len(came) != 2*workers+2-want {
				t.Errorf("of %d workers %d have a job that waits, and %d came back; want %d", workers, n, len(came), want)
			}
			// Another pool has room of its own.
			other := make(chan error, 1)
			go func() {
				other <- m.Run(t.Context(), jobs.Job{Kind: "test", ID: "other", Key: "a", Pool: jobs.Pool{Name: "other", Workers: 2}}, nothing)
			}()
			synctest.Wait()
			if n := m.Stats().Waiting; n != want+1 {
				t.Errorf("%d jobs wait, want one more than %d", n, want)
			}
			testkit.Must(t, errors.Join(one.Release(), two.Release(), <-other))
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := m.Stats().Waiting; n != 0 {
				t.Errorf("%d jobs still wait", n)
			}
		})
	}
}

// TestClosedAtTheMomentOfTheGrant closes the Mutex just before the key is granted: the job
// runs with a context that stays, or comes back.
func TestClosedAtTheMomentOfTheGrant(t *testing.T) {
	for range 100 {
		simulate(t, func(t *testing.T, f *fixture) {
			m, lease := f.mutex(nil), f.held("k")
			j := jobs.Job{Kind: "test", ID: "1", Key: "k", Pool: jobs.Pool{Workers: 2}}
			f.wg.Go(func() {
				err := m.Run(t.Context(), j, func(ctx context.Context) error {
					time.Sleep(time.Millisecond)
					return context.Cause(ctx)
				})
				if _, ok := errors.AsType[*jobs.RequeueError](err); err != nil && !ok {
					t.Errorf("the job ran, and its context ended: %v", err)
				}
			})
			synctest.Wait()
			m.Close()
			testkit.Must(t, lease.Release())
			f.wg.Wait()
		})
	}
}

// slowStore takes a second for each claim.
type slowStore struct{ dibs.Store }

func (s slowStore) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	time.Sleep(time.Second)
	return s.Store.Claim(ctx, claims, answers)
}

// TestLimitThatIsOverByNow runs a job whose limit is over after it was looked at, and
// before it waits: two claims later.
func TestLimitThatIsOverByNow(t *testing.T) {
	for _, left := range []time.Duration{2 * time.Second, 1500 * time.Millisecond} {
		simulate(t, func(t *testing.T, f *fixture) {
			m := f.mutexOf(slowStore{f.store}, &jobs.Options{Limit: time.Minute, AfterLimit: jobs.Fail})
			lease, start := f.held("k"), time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			j := jobs.Job{Kind: "test", ID: "1", Key: "k", Pool: jobs.Pool{Workers: 2}, Due: start.Add(left - time.Minute)}
			err := m.Run(ctx, j, nothing)
			if !errors.Is(err, dibs.ErrHeld) || time.Since(start) > 5*time.Second {
				t.Errorf("%v left: it ended after %v with %v; want ErrHeld, soon", left, time.Since(start), err)
			}
			testkit.Must(t, lease.Release())
		})
	}
}
