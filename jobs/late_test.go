package jobs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// TestLateJobKeepsItsTurn gives a job back to its queue, which has no free worker for a minute
// longer than planned. No other job of the key passes it, although Grace is short, because its
// queue has it.
func TestLateJobKeepsItsTurn(t *testing.T) {
	const late = time.Minute
	again := func(error) time.Duration { return 10 * time.Minute }
	full := errors.New("the table is full")
	pool := jobs.Pool{Name: "pool", Workers: 2}
	for _, c := range []struct {
		name    string
		options jobs.Options
		job     jobs.Job
		busy    string // the key that is held, by default the job's own
		end     func(m *jobs.Mutex, cancel context.CancelFunc)
		failed  error // nil: it is requeued
	}{
		{name: "no worker has room for its wait"},
		{name: "no worker has room, and its queue promotes it", job: jobs.Job{Promoted: true}},
		{name: "it waited in a worker", options: jobs.Options{Policy: jobs.Wait, Wait: time.Second}},
		{name: "it waited in a worker, and its queue promotes it", options: jobs.Options{Policy: jobs.Wait, Wait: time.Second}, job: jobs.Job{Promoted: true}},
		{name: "its patience is over", job: jobs.Job{Pool: pool, Patience: time.Second}},
		{name: "its worker closes", job: jobs.Job{Pool: pool}, end: func(m *jobs.Mutex, _ context.CancelFunc) { m.Close() }},
		{name: "it waits for a shared permit", options: jobs.Options{Total: 1, TotalKey: "all"}, busy: "all"},
		{
			name: "it is cancelled in the wait", job: jobs.Job{Pool: pool, RetryIn: again},
			end: func(_ *jobs.Mutex, cancel context.CancelFunc) { cancel() }, failed: context.Canceled,
		},
		{
			name: "its limit is over", options: jobs.Options{Limit: time.Second, AfterLimit: jobs.Fail},
			job: jobs.Job{NoRequeue: true, RetryIn: again}, failed: dibs.ErrHeld,
		},
		{
			name: "it cannot be given up", options: jobs.Options{
				Limit: time.Second, AfterLimit: jobs.GiveUp,
				GaveUp: func(context.Context, jobs.Job, time.Duration) error { return full },
			},
			job: jobs.Job{NoRequeue: true, RetryIn: again}, failed: full,
		},
	} {
		for _, ticket := range []bool{true, false} {
			simulateAs(t, c.name+map[bool]string{false: ", without a ticket"}[ticket], func(t *testing.T, f *fixture) {
				c.options.Grace = time.Second
				m := f.mutex(&c.options)
				busy := "k"
				if c.busy != "" {
					busy = c.busy
				}
				holder := f.held(busy)
				j := c.job
				j.Kind, j.ID, j.Key = "test", "1", "k"
				if ticket {
					j.Ticket = f.ticket(m, "k")
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.end != nil {
					time.AfterFunc(time.Second, func() { c.end(m, cancel) })
				}
				err := m.Run(ctx, j, nothing)
				after := again(err)
				if back, ok := errors.AsType[*jobs.RequeueError](err); ok {
					after = back.After
				} else if !errors.Is(err, c.failed) || err == nil {
					t.Fatalf("the job ended with %v", err)
				}
				testkit.Must(t, holder.Release())
				f.othersWait(f.mutex(&jobs.Options{Grace: time.Second}), j, after+late)
				f.empty()
			})
		}
	}
}

// TestJobThatWasRequeuedAndWaitsWhenItsWorkerDies: a job that was given back, and waits in its
// next worker, is waited for no longer than Grace if that worker dies.
func TestJobThatWasRequeuedAndWaitsWhenItsWorkerDies(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		store := &mortalStore{Store: f.store}
		dying, m := f.mutexOf(store, nil), f.mutex(nil)
		holder := f.held("k")
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")}
		if _, ok := errors.AsType[*jobs.RequeueError](m.Run(t.Context(), j, nothing)); !ok {
			t.Fatal("it was not requeued")
		}
		j.NoRequeue = true
		f.wg.Go(func() { _ = dying.Run(t.Context(), j, nothing) })
		time.Sleep(time.Second)
		store.dead.Store(true)
		time.Sleep(30 * time.Second)
		testkit.Must(t, holder.Release())
		start := time.Now()
		testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "2", Key: "k", NoRequeue: true}, nothing))
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the next job ran after %v; want Grace, 10 s, and two seconds at most", took)
		}
		testkit.Must(t, m.Run(t.Context(), j, nothing)) // it is delivered again
		f.wg.Wait()
	})
}
