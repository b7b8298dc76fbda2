package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

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
