package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

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

// TestCancelRunning: each job that reaches a worker cancels the one that runs, also in
// another process, and the newest one runs to its end.
func TestCancelRunning(t *testing.T) {
	for _, processes := range []int{1, 3} {
		simulateAs(t, processes, func(t *testing.T, f *fixture) {
			q := newQueue()
			var mu sync.Mutex
			began, ended, running := map[string]bool{}, map[string]bool{}, 0
			work := func(ctx context.Context, id string) error {
				mu.Lock()
				began[id] = true
				if running++; running > 1 {
					t.Error("two jobs run at once")
				}
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					running--
				}()
				select {
				case <-ctx.Done():
					time.Sleep(100 * time.Millisecond) // it needs a moment to stop
					newer, ok := errors.AsType[*jobs.ReplacedError](context.Cause(ctx))
					if !ok || newer.Kind != "test" || newer.ID <= id {
						t.Errorf("%s was cancelled by %v", id, context.Cause(ctx))
					}
					return context.Cause(ctx)
				case <-time.After(time.Minute):
					mu.Lock()
					defer mu.Unlock()
					ended[id] = true
					return nil
				}
			}
			var mutexes []*jobs.Mutex
			for range processes {
				m := f.mutex(&jobs.Options{Policy: jobs.CancelRunning})
				mutexes = append(mutexes, m)
				f.workers(q, m, 6, work)
			}
			for i := range 5 {
				q.enqueue(t, mutexes[0], "k", fmt.Sprint("k/", i))
				time.Sleep(5 * time.Second)
			}
			f.ticket(mutexes[0], "k") // its job is not enqueued, so it cancels no job
			f.drain(q)
			if len(began) != 5 || len(ended) != 1 || !ended["k/4"] {
				t.Errorf("%v began, and %v ran to their end; want all, and the last one", began, ended)
			}
			var s jobs.Stats
			for _, m := range mutexes {
				s.Replaced += m.Stats().Replaced
				s.Succeeded += m.Stats().Succeeded
				s.Failed += m.Stats().Failed
			}
			if s.Replaced != 4 || s.Succeeded != 1 || s.Failed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestCancelledJob: what a job that was cancelled returns decides only how it is counted,
// unless its key is lost.
func TestCancelledJob(t *testing.T) {
	failure := errors.New("a failure")
	for _, c := range []struct {
		name    string
		returns error
		lost    bool
		want    error
		stats   jobs.Stats
	}{
		{"done all the same", nil, false, nil, jobs.Stats{Acquired: 1, Succeeded: 1}},
		{"an error of its own", failure, false, nil, jobs.Stats{Acquired: 1, Replaced: 1}},
		{"lost", failure, true, dibs.ErrLost, jobs.Stats{Acquired: 1, Lost: 1}},
	} {
		simulateAs(t, c.name, func(t *testing.T, f *fixture) {
			m, other := f.mutex(&jobs.Options{Policy: jobs.CancelRunning}), f.mutex(&jobs.Options{Policy: jobs.CancelRunning})
			first, second := f.ticket(m, "k"), f.ticket(m, "k")
			newer := jobs.Job{Kind: "test", ID: "2", Key: "k", Ticket: second}
			err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: first}, func(ctx context.Context) error {
				if _, ok := errors.AsType[*jobs.RequeueError](other.Run(t.Context(), newer, nothing)); !ok {
					t.Error("the newer job did not wait")
				}
				<-ctx.Done()
				if c.lost {
					_, err := f.store.ForceRelease(t.Context(), dibs.Key{Name: "k"}, "")
					testkit.Must(t, err)
				}
				return c.returns
			})
			if !errors.Is(err, c.want) || m.Stats() != c.stats {
				t.Errorf("it ended with %v, %+v; want %v, %+v", err, m.Stats(), c.want, c.stats)
			}
			if c.lost { // it is tried again
				testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: first}, nothing))
			}
			testkit.Must(t, other.Run(t.Context(), newer, nothing))
			if s := other.Stats(); s.Succeeded != 1 {
				t.Errorf("the newer job: %+v", s)
			}
			f.empty()
		})
	}
}

// TestMaxLifetime: a job that hangs loses its key, and the next job runs.
func TestMaxLifetime(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(&jobs.Options{MaxLifetime: time.Minute})
		first, second := f.ticket(m, "k"), f.ticket(m, "k")
		hangs, start := make(chan struct{}), time.Now()
		f.wg.Go(func() {
			err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: first, Final: func(error) bool { return true }}, func(ctx context.Context) error {
				<-ctx.Done()
				if took := time.Since(start); took != time.Minute || !errors.Is(context.Cause(ctx), dibs.ErrLost) {
					t.Errorf("its context ended after %v with %v", took, context.Cause(ctx))
				}
				<-hangs
				return context.Cause(ctx)
			})
			if !errors.Is(err, dibs.ErrLost) {
				t.Errorf("it ended with %v", err)
			}
		})
		time.Sleep(time.Second)
		testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "2", Key: "k", Ticket: second, NoRequeue: true}, nothing))
		if took := time.Since(start); took < time.Minute {
			t.Errorf("the next job ran after %v", took)
		}
		close(hangs)
		f.wg.Wait()
		f.empty()
	})
}
