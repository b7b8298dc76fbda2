package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// A new version with another number of permits takes over a backlog: nothing fails, and
// nothing uses a try, even while the old version still runs one.
func TestPermitsThatDifferUseNoAttempt(t *testing.T) {
	for _, c := range []struct{ old, new int }{{1, 2}, {3, 1}, {2, 5}} {
		simulateAs(t, fmt.Sprint(c.old, " to ", c.new), func(t *testing.T, f *fixture) {
			q := newQueue()
			before := f.mutex(&jobs.Options{Permits: c.old})
			after := f.mutex(&jobs.Options{Permits: c.new})
			// The old version is at its last job.
			ticket := f.ticket(before, "k")
			old, runs := make(chan error, 1), make(chan struct{})
			go func() {
				old <- before.Run(t.Context(), jobs.Job{Kind: "test", ID: "old", Key: "k", Ticket: ticket}, func(context.Context) error {
					close(runs)
					time.Sleep(time.Minute)
					return nil
				})
			}()
			<-runs
			var all []*entry
			for i := range 4 {
				all = append(all, q.enqueue(t, before, "k", fmt.Sprint("k/", i)))
			}
			// What the new version enqueues meanwhile is not refused either.
			all = append(all, q.enqueue(t, after, "k", "k/4"))
			for _, e := range all {
				e.attempts = 1
			}
			f.run(q, after, 6, func(context.Context, string) error {
				time.Sleep(time.Second)
				return nil
			})
			testkit.Check(t, <-old)
			for _, e := range all {
				if e.dropped || e.failures > 0 {
					t.Errorf("job %s failed %d times: %v", e.job.ID, e.failures, e.err)
				}
			}
			if s := after.Stats(); s.Succeeded != 5 || s.Refused != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The key has no holder: no job is skipped because of a backlog that was enqueued under
// another policy, nor of the place of a job that never comes.
func TestPlacesHaveNobodySkipped(t *testing.T) {
	for backlog := range 4 {
		simulateAs(t, backlog, func(t *testing.T, f *fixture) {
			q, l := newQueue(), newRunLog(t)
			before, after := f.mutex(nil), f.mutex(&jobs.Options{Policy: jobs.Skip})
			if backlog == 0 {
				f.ticket(before, "k")
			}
			q.backlog(t, before, backlog)
			q.enqueue(t, after, "k", "k/new")
			f.run(q, after, 1, l.work(time.Second))
			if s := after.Stats(); len(l.ran["k"]) != backlog+1 || s.Skipped != 0 {
				t.Errorf("%v ran, %+v", l.ran, s)
			}
			f.empty()
		})
	}
}

// A version with places requeues a job that has no ticket, and a version without places does it: its
// place does not block the key for CrashGrace.
func TestARequeuedJobLeavesNoPlace(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		job := jobs.Job{Kind: "test", ID: "1", Key: "k"}
		holder := f.held("k")
		if _, requeued := errors.AsType[*jobs.RequeueError](f.mutex(nil).Run(t.Context(), job, nothing)); !requeued {
			t.Fatal("it was not requeued while the key was held")
		}
		testkit.Must(t, f.mutex(&jobs.Options{Policy: jobs.Skip}).Run(t.Context(), job, nothing))
		testkit.Must(t, holder.Release())
		f.empty()
	})
}

// The place of a job that failed and waits to be tried again does not block a newer
// one that replaces it, whichever was first.
func TestAFailedJobIsReplacedAtOnce(t *testing.T) {
	for _, early := range []bool{true, false} {
		simulateAs(t, fmt.Sprint("enqueued before it failed ", early), func(t *testing.T, f *fixture) {
			m := f.mutex(&jobs.Options{Policy: jobs.Replace})
			ticket := func() string {
				s := f.ticket(m, "k")
				return s
			}
			// run runs a job until it is done or fails, and returns how long that took.
			run := func(id, ticket string, fn func(context.Context) error) (time.Duration, error) {
				start := time.Now()
				for {
					err := m.Run(t.Context(), jobs.Job{
						Kind: "test", ID: id, Key: "k", Ticket: ticket, Due: start,
						RetryIn: func(error) time.Duration { return time.Hour },
					}, fn)
					back, ok := errors.AsType[*jobs.RequeueError](err)
					if !ok {
						return time.Since(start), err
					}
					time.Sleep(back.After)
				}
			}
			accident := errors.New("an accident")
			first, second := ticket(), ""
			if early {
				second = ticket()
			}
			if _, err := run("1", first, func(context.Context) error { return accident }); err != accident {
				t.Fatal(err)
			}
			if !early {
				second = ticket()
			}
			if took, err := run("2", second, nothing); err != nil || took > 30*time.Second {
				t.Errorf("the newer one ran after %v: %v", took, err)
			}
			if _, err := run("1", first, func(context.Context) error { t.Error("it ran again"); return nil }); err != nil {
				t.Error(err)
			}
			if s := m.Stats(); s.Replaced != 1 || s.Succeeded != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}
