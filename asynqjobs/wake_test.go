package asynqjobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/jobs"
)

// TestWake: what is put off is made pending, in front; what is anything else by now
// stays as it is.
func TestWake(t *testing.T) {
	t.Parallel()
	const mark = "dibs-MARK"
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *fixture, string)
		mark   string
		want   asynq.TaskState
	}{
		{"put off", nil, mark, asynq.TaskStatePending},
		{"put off since by another process", nil, "dibs-OTHER", asynq.TaskStateRetry},
		{"back by itself, behind others", func(t *testing.T, f *fixture, id string) {
			if err := f.inspector.RunTask("default", id); err != nil {
				t.Fatal(err)
			}
		}, mark, asynq.TaskStatePending},
		{"archived by somebody", func(t *testing.T, f *fixture, id string) {
			if err := f.inspector.ArchiveTask("default", id); err != nil {
				t.Fatal(err)
			}
		}, mark, asynq.TaskStateArchived},
		{"deleted by somebody", func(t *testing.T, f *fixture, id string) {
			if err := f.inspector.DeleteTask("default", id); err != nil {
				t.Fatal(err)
			}
		}, mark, 0},
		{"completed since", func(t *testing.T, f *fixture, id string) {
			if err := f.inspector.RunTask("default", id); err != nil {
				t.Fatal(err)
			}
			stop := f.serve(t, asynq.Config{}, func(context.Context, *asynq.Task) error { return nil })
			f.becomes(t, id, asynq.TaskStateCompleted)
			stop()
		}, mark, asynq.TaskStateCompleted},
		{"failed since", func(t *testing.T, f *fixture, id string) {
			if err := f.inspector.RunTask("default", id); err != nil {
				t.Fatal(err)
			}
			stop := f.serve(t, asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }},
				func(context.Context, *asynq.Task) error { return errors.New("it failed") })
			eventually(t, "it has failed", func() bool {
				info, err := f.inspector.GetTaskInfo("default", id)
				return err == nil && info.State == asynq.TaskStateRetry && info.LastErr == "it failed"
			})
			stop()
		}, mark, asynq.TaskStateRetry},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, ownRedis(t), nil)
			info, err := f.plain.Enqueue(asynq.NewTask("work", nil, asynq.Retention(time.Hour)))
			if err != nil {
				t.Fatal(err)
			}
			stop := f.serve(t, asynq.Config{}, func(context.Context, *asynq.Task) error {
				return &putOffError{mark: mark, back: &jobs.ComeBackError{After: time.Hour}}
			})
			f.becomes(t, info.ID, asynq.TaskStateRetry)
			stop()
			if tt.change != nil {
				tt.change(t, f, info.ID)
			}
			state := f.state(info.ID)
			if tt.want == asynq.TaskStatePending {
				if _, err := f.plain.Enqueue(asynq.NewTask("backlog", nil)); err != nil {
					t.Fatal(err)
				}
			}
			done, err := f.worker.wake(t.Context(), "default", info.ID, tt.mark)
			gone := tt.want == 0 || tt.want == asynq.TaskStateArchived
			if done == gone || errors.Is(err, jobs.ErrGone) != gone || err != nil && !gone {
				t.Errorf("%v, %v; gone should be %v", done, err, gone)
			}
			if got := f.state(info.ID); got != tt.want {
				t.Errorf("it was %v and is %v, want %v", state, got, tt.want)
			}
			if tt.want == asynq.TaskStatePending {
				c := f.worker.redis.(*redis.Client)
				if next, err := c.LIndex(t.Context(), "asynq:{default}:pending", -1).Result(); err != nil || next != info.ID {
					t.Errorf("the next one is %q, %v, want %q", next, err, info.ID)
				}
				if n := c.LLen(t.Context(), "asynq:{default}:pending").Val(); n != 2 {
					t.Errorf("%d are pending, want 2", n)
				}
			}
		})
	}
}

// TestWakeEarly: a task that a worker still has is asked for again, and not made
// pending.
func TestWakeEarly(t *testing.T) {
	t.Parallel()
	f := newFixture(t, ownRedis(t), nil)
	var g gates
	f.serve(t, asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error { return g.wait(ctx, "end") })
	info, err := f.plain.Enqueue(asynq.NewTask("work", nil))
	if err != nil {
		t.Fatal(err)
	}
	f.becomes(t, info.ID, asynq.TaskStateActive)
	if done, err := f.worker.wake(t.Context(), "default", info.ID, "dibs-MARK"); done || err != nil {
		t.Errorf("%v, %v, want that it is asked for again", done, err)
	}
	if got := f.state(info.ID); got != asynq.TaskStateActive {
		t.Errorf("it is %v", got)
	}
	g.open("end")
}
