package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/jobs"
)

// TestWaitingIsNotCounted: tasks that have one attempt only, or a short time, wait for
// many others of their key and are neither lost nor failed, and hold no worker up.
func TestWaitingIsNotCounted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		enqueue func(*testing.T, *fixture, string)
	}{
		{"enqueued with its key", func(t *testing.T, f *fixture, name string) { f.enqueue(t, job("k", name, asynq.MaxRetry(0))) }},
		{"with a short time", func(t *testing.T, f *fixture, name string) {
			f.enqueue(t, job("k", name, asynq.MaxRetry(0), asynq.Timeout(8*time.Second)))
		}},
		{"enqueued by a plain client", func(t *testing.T, f *fixture, name string) {
			if _, err := f.plain.Enqueue(asynq.NewTask("plain", []byte("k"), asynq.MaxRetry(0))); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, ownRedis(t), nil)
			var did record
			var g gates
			var want []string
			f.serve(t, asynq.Config{
				Concurrency:  12,
				ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { did.add("%v", err) }),
			}, func(ctx context.Context, task *asynq.Task) error {
				if string(task.Payload()) == "first" {
					did.add("first begins")
					return g.wait(ctx, "first")
				}
				n, _ := GetMaxRetry(ctx)
				did.add("one of %d retries", n)
				return nil
			})
			f.enqueue(t, job("k", "first"))
			did.has(t, "first begins")
			want = append(want, "first begins")
			const others = 11
			for i := range others {
				tt.enqueue(t, f, fmt.Sprint(i))
				want = append(want, "one of 0 retries")
			}
			if tt.name != "enqueued by a plain client" {
				// All those in the worker leave it when a quarter of their time is over.
				eventually(t, "some are put off", func() bool { return putOffs(t, f) > 0 })
			}
			g.open("first")
			did.is(t, want...)
			info, err := f.inspector.GetQueueInfo("default")
			if err != nil || info.Failed != 0 || info.Archived != 0 {
				t.Errorf("%+v, %v", info, err)
			}
		})
	}
}

// TestLastAttempt: however a task ends on its last attempt, it is archived, does not
// run again, and the next one of its key runs at once.
func TestLastAttempt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		opts    []asynq.Option
		plain   bool
		run     func(context.Context, *gates) error
		during  func(*fixture, *testing.T, string)
		wantErr string
	}{
		{name: "failed", run: func(context.Context, *gates) error { return errors.New("it failed") }, wantErr: "it failed"},
		{name: "failed, of a plain client", plain: true, run: func(context.Context, *gates) error { return errors.New("it failed") }, wantErr: "it failed"},
		{name: "not to be tried again", opts: []asynq.Option{asynq.MaxRetry(9)}, run: func(context.Context, *gates) error {
			return fmt.Errorf("it makes no sense: %w", asynq.SkipRetry)
		}, wantErr: "it makes no sense: " + asynq.SkipRetry.Error()},
		{name: "panicked", run: func(context.Context, *gates) error { panic("it panicked") }, wantErr: refusal},
		{name: "ran out of time", opts: []asynq.Option{asynq.Timeout(5 * time.Second)}, run: func(ctx context.Context, g *gates) error {
			return g.wait(ctx, "never")
		}, wantErr: refusal},
		{name: "cancelled", run: func(ctx context.Context, g *gates) error { return g.wait(ctx, "never") },
			during: (*fixture).cancel, wantErr: refusal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, ownRedis(t), &jobs.Options{Hold: time.Hour, Recovery: time.Hour})
			var did record
			var g gates
			var handled record
			f.serve(t, asynq.Config{
				ErrorHandler: asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, err error) {
					retried, _ := asynq.GetRetryCount(ctx)
					if most, _ := GetMaxRetry(ctx); retried >= most {
						handled.add("exhausted")
					}
				}),
			}, func(ctx context.Context, task *asynq.Task) error {
				did.add("%s", task.Payload())
				if string(task.Payload()) == "next" {
					return nil
				}
				return tt.run(ctx, &g)
			})
			var info *asynq.TaskInfo
			if tt.plain {
				var err error
				if info, err = f.plain.Enqueue(asynq.NewTask("plain", []byte("k"), asynq.MaxRetry(0))); err != nil {
					t.Fatal(err)
				}
			} else {
				info = f.enqueue(t, job("k", "k", slices.Concat([]asynq.Option{asynq.MaxRetry(0)}, tt.opts)...))
			}
			did.has(t, "k")
			f.enqueue(t, job("k", "next"))
			if tt.during != nil {
				tt.during(f, t, info.ID)
			}
			did.is(t, "k", "next")
			got := f.becomes(t, info.ID, asynq.TaskStateArchived)
			if got.LastErr != tt.wantErr {
				t.Errorf("it was archived with %q, want %q", got.LastErr, tt.wantErr)
			}
			if len(tt.opts) == 0 && len(handled.read()) == 0 {
				t.Error("the ErrorHandler was not told that there are no attempts left")
			}
			if tt.wantErr != refusal {
				return
			}
			// Who makes it run again means it.
			if err := f.inspector.RunTask("default", info.ID); err != nil {
				t.Fatal(err)
			}
			did.is(t, "k", "next", "k")
		})
	}
}

// TestFailed: a task that failed and is tried again keeps the others of its key
// waiting, or lets them pass.
func TestFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		failed jobs.Failed
		panics bool
		want   []string
		runs   bool // the failed task is made to run after the other one
	}{
		{"keeps its place", jobs.KeepPlace, false, []string{"first", "first", "second"}, false},
		{"keeps its place when it panics", jobs.KeepPlace, true, []string{"first", "first", "second"}, false},
		{"lets others pass", jobs.LetPass, false, []string{"first", "second", "first"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, ownRedis(t), &jobs.Options{Failed: tt.failed})
			var did record
			var g gates
			f.serve(t, asynq.Config{
				RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
					if tt.runs {
						return time.Hour
					}
					return time.Second // Asynq counts in seconds
				},
			}, func(ctx context.Context, task *asynq.Task) error {
				did.add("%s", task.Payload())
				if n, _ := asynq.GetRetryCount(ctx); n > 0 || string(task.Payload()) == "second" {
					return nil
				}
				if err := g.wait(ctx, "fail"); err != nil {
					return err
				}
				if tt.panics {
					panic("it panicked")
				}
				return errors.New("it failed")
			})
			first := f.enqueue(t, job("k", "first"))
			did.has(t, "first")
			f.enqueue(t, job("k", "second"))
			g.open("fail")
			if tt.runs {
				did.has(t, "second")
				f.becomes(t, first.ID, asynq.TaskStateRetry)
				if err := f.inspector.RunTask("default", first.ID); err != nil {
					t.Fatal(err)
				}
			}
			did.is(t, tt.want...)
		})
	}
}
