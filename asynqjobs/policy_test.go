package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// TestPolicies: while a task of a key runs, three more are enqueued.
func TestPolicies(t *testing.T) {
	t.Parallel()
	gaveUp := func(did *record) func(context.Context, jobs.Job, time.Duration) error {
		return func(_ context.Context, j jobs.Job, waited time.Duration) error {
			did.add("a job of %s gave up", j.Key)
			return nil
		}
	}
	for _, tt := range []struct {
		name    string
		options jobs.Options
		gaveUp  bool
		during  []string // done while the first one runs, in any order
		after   []string // and after that
	}{
		{"come back", jobs.Options{}, false, nil, []string{"2", "3", "4"}},
		{"come back, one runnable", jobs.Options{Ahead: 1}, false, nil, []string{"2", "3", "4"}},
		{"wait", jobs.Options{Policy: jobs.Wait}, false, nil, []string{"2", "3", "4"}},
		{"skip", jobs.Options{Policy: jobs.Skip}, false, nil, nil},
		{"replace", jobs.Options{Policy: jobs.Replace}, false, nil, []string{"4"}},
		{"periodic", jobs.Options{Policy: jobs.Periodic, Period: time.Hour}, false, nil, nil},
		{"fail after the limit", jobs.Options{Limit: time.Second, Otherwise: jobs.Fail}, false, []string{"failed: held", "failed: held", "failed: held"}, nil},
		{"run anyway after the limit", jobs.Options{Limit: time.Second, Otherwise: jobs.RunAnyway}, false, []string{"2", "3", "4"}, nil},
		{"give up after the limit", jobs.Options{Limit: time.Second, Otherwise: jobs.GiveUp}, true,
			[]string{"a job of k gave up", "a job of k gave up", "a job of k gave up"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var did record
			var g gates
			if tt.gaveUp {
				tt.options.GaveUp = gaveUp(&did)
			}
			f := newFixture(t, ownRedis(t), &tt.options)
			f.serve(t, asynq.Config{
				ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
					if errors.Is(err, dibs.ErrHeld) {
						did.add("failed: held")
					}
				}),
			}, func(ctx context.Context, task *asynq.Task) error {
				did.add("%s", task.Payload())
				if string(task.Payload()) == "1" {
					return g.wait(ctx, "1")
				}
				return nil
			})
			first := f.enqueue(t, job("k", "1"))
			did.has(t, "1")
			var ids []string
			for _, name := range []string{"2", "3", "4"} {
				ids = append(ids, f.enqueue(t, job("k", name, asynq.MaxRetry(0))).ID)
			}
			switch {
			case tt.during != nil:
				eventually(t, fmt.Sprint(tt.during), func() bool { return len(did.read()) == 1+len(tt.during) })
				got := did.read()[1:]
				slices.Sort(got)
				if !slices.Equal(got, tt.during) {
					t.Errorf("done was %q while the first one ran, want %q", got, tt.during)
				}
			case tt.options.Policy == jobs.Replace:
				// All have reached a worker, so that each knows of the newest.
				eventually(t, "all wait", func() bool {
					s := f.mutex.Stats()
					return s.Waiting+int(s.Replaced) == 3
				})
			case tt.after == nil:
				for _, id := range ids {
					f.gone(t, id)
				}
			}
			g.open("1")
			f.gone(t, first.ID)
			did.is(t, slices.Concat([]string{"1"}, did.read()[1:1+len(tt.during)], tt.after)...)
			if tt.options.Otherwise != jobs.Fail {
				for _, id := range ids {
					f.gone(t, id)
				}
			}
			if tt.options.Policy == jobs.Periodic {
				f.gone(t, f.enqueue(t, job("k", "5")).ID)
			}
			// Each time that is over is over: nothing more is done.
			if got := did.read(); len(got) != 1+len(tt.during)+len(tt.after) {
				t.Errorf("done was %q", got)
			}
		})
	}
}

// TestOnce: what is delivered again after it was done does nothing; what had failed
// runs again.
func TestOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, ownRedis(t), &jobs.Options{Once: time.Hour})
	var did record
	f.serve(t, asynq.Config{}, func(ctx context.Context, task *asynq.Task) error {
		did.add("%s", task.Payload())
		if n, _ := asynq.GetRetryCount(ctx); n == 0 && string(task.Payload()) == "fails" {
			return errors.New("it failed")
		}
		return nil
	})
	for range 3 {
		// The sender of a webhook sends it again; Asynq has forgotten that it was there.
		f.gone(t, f.enqueue(t, job("k", "webhook", asynq.TaskID("webhook 7"))).ID)
	}
	f.gone(t, f.enqueue(t, job("k", "fails", asynq.TaskID("webhook 8"))).ID)
	// Somebody makes a task run again that is completed.
	info := f.enqueue(t, job("k", "kept", asynq.Retention(time.Hour)))
	f.becomes(t, info.ID, asynq.TaskStateCompleted)
	if err := f.inspector.RunTask("default", info.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it was done before", func() bool { return f.mutex.Stats().Remembered == 3 })
	did.is(t, "webhook", "fails", "fails", "kept")
}

// TestCancelled: tasks are cancelled while they wait, and while they run. They come
// again, as Asynq's always do, and in their order.
func TestCancelled(t *testing.T) {
	t.Parallel()
	f := newFixture(t, ownRedis(t), nil)
	var did record
	var g gates
	f.serve(t, asynq.Config{}, func(ctx context.Context, task *asynq.Task) error {
		name := string(task.Payload())
		retried, _ := asynq.GetRetryCount(ctx)
		did.add("%s begins, retry %d", name, retried)
		if name == "runs" && retried == 0 {
			return g.wait(ctx, "never")
		}
		return nil
	})
	runs := f.enqueue(t, job("k", "runs"))
	did.has(t, "runs begins, retry 0")
	waits := f.enqueue(t, job("k", "waits"))
	eventually(t, "it waits in the worker", func() bool { return f.mutex.Stats().Waiting == 1 })
	f.cancel(t, waits.ID)
	eventually(t, "it is tried again", func() bool {
		info, err := f.inspector.GetTaskInfo("default", waits.ID)
		return err == nil && info.Retried == 1
	})
	f.enqueue(t, job("k", "last"))
	f.cancel(t, runs.ID)
	did.is(t, "runs begins, retry 0", "runs begins, retry 1", "waits begins, retry 1", "last begins, retry 0")
}
