package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// TestEnqueue: what a task is given arrives.
func TestEnqueue(t *testing.T) {
	f := parallel(t, nil)
	task := job("k", "payload", asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Queue("first"))
	task.Headers = map[string]string{"trace": "17"}
	for range 2 {
		info := f.enqueue(t, task, asynq.Queue("second"))
		got, err := f.inspector.GetTaskInfo("second", info.ID)
		testkit.Must(t, err)
		if got.Type != "job" || string(got.Payload) != "payload" || got.Timeout != time.Minute || got.MaxRetry != 3+spare {
			t.Errorf("%+v", got)
		}
		h := got.Headers
		if h["trace"] != "17" || h[headerKey] != "k" || h[headerTicket] == "" || h[headerRetry] != "3" || h[headerDue] == "" || len(h) != 5 {
			t.Errorf("the headers are %v", h)
		}
	}
	if len(task.Headers) != 1 || len(task.Options) != 3 {
		t.Errorf("the task was changed: %+v", task)
	}
	info := f.enqueue(t, job("", "without a key"))
	if got, err := f.inspector.GetTaskInfo("default", info.ID); err != nil || len(got.Headers) != 0 || got.MaxRetry != 25 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, task := range []*Task{nil, job(strings.Repeat("k", 513), "")} {
		if info, err := f.mutex.EnqueueContext(t.Context(), task); err == nil {
			t.Errorf("it was enqueued: %+v", info)
		}
	}
}

// TestNotEnqueued: a task that could not be enqueued blocks no other task, and neither does the
// place of one whose enqueuing was rolled back, for longer than Grace.
func TestNotEnqueued(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		opts []asynq.Option
		want error
	}{
		{"duplicate", []asynq.Option{asynq.Unique(time.Minute)}, asynq.ErrDuplicateTask},
		{"same ID", []asynq.Option{asynq.TaskID("7")}, asynq.ErrTaskIDConflict},
		{"wrong option", []asynq.Option{asynq.Queue(" ")}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := parallel(t, &jobs.Options{Grace: time.Hour, Ahead: 1})
			if tt.want != nil {
				f.enqueue(t, job("other", "same", append(tt.opts, asynq.ProcessIn(time.Hour))...))
			}
			if _, err := f.mutex.EnqueueContext(t.Context(), job("k", "same", tt.opts...)); err == nil || !errors.Is(err, tt.want) && tt.want != nil {
				t.Error(err)
			}
			f.serve(t, asynq.Config{}, f.note)
			f.enqueue(t, job("k", "next"))
			f.did.is(t, "next")
			if tt.want != nil && f.info(t).Scheduled != 1 {
				t.Error("the task that was there is not scheduled any more")
			}
		})
	}
}

// TestEnqueueUnknown: a parked task that Redis has although its enqueuing failed is made runnable
// in its turn.
func TestEnqueueUnknown(t *testing.T) {
	f := parallel(t, &jobs.Options{Grace: time.Hour, Ahead: 1})
	f.enqueue(t, job("k", "first"))
	f.mutex.redis.AddHook(&cutOff{})
	if _, err := f.mutex.EnqueueContext(t.Context(), job("k", "unknown")); err == nil {
		t.Fatal("nothing was cut off")
	}
	f.enqueue(t, job("k", "last"))
	f.serve(t, asynq.Config{}, f.note)
	f.did.is(t, "first", "unknown", "last")
}

// cutOff loses the first answer to a command that schedules a task.
type cutOff struct{ done atomic.Bool }

func (*cutOff) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*cutOff) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *cutOff) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		// The first EVALSHA of a script may say that Redis does not know it.
		if err == nil && strings.Contains(fmt.Sprint(cmd.Args()), ":scheduled") && !c.done.Swap(true) {
			err = errors.New("the connection was cut off")
			cmd.SetErr(err)
		}
		return err
	}
}

// TestLater: a task that runs later takes its place when it does, and so does one of a client
// that knows nothing of keys.
func TestLater(t *testing.T) {
	f := parallel(t, &jobs.Options{Grace: time.Hour})
	f.serve(t, asynq.Config{}, f.work)
	later := f.enqueue(t, job("k", "later", asynq.ProcessIn(time.Hour)))
	if h := later.Headers; h[headerTicket] != "" || h[headerKey] != "k" {
		t.Errorf("its headers are %v", h)
	}
	f.enqueue(t, job("k", "now"))
	f.did.has(t, "now")
	if err := f.inspector.RunTask("default", later.ID); err != nil { // its time has come
		t.Fatal(err)
	}
	testkit.Eventually(t, "the later one has a place", func() bool { return f.mutex.Stats().Waiting == 1 })
	f.enqueue(t, plain("k"))
	testkit.Eventually(t, "the plain one has a place", func() bool { return f.mutex.Stats().Waiting == 2 })
	f.enqueue(t, job("k", "last"))
	f.gates.open("now", "later", "k", "last")
	f.did.is(t, "now", "later", "k", "last")
}

// TestSettingsOf: the last option counts, and what is not for later is for now.
func TestSettingsOf(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		opts []asynq.Option
		want settings
	}{
		{nil, settings{due: now, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.MaxRetry(3), asynq.MaxRetry(-1)}, settings{due: now, maxRetry: 0, queue: "default"}},
		{[]asynq.Option{asynq.ProcessIn(time.Hour)}, settings{due: now.Add(time.Hour), later: true, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.ProcessIn(time.Hour), asynq.ProcessAt(now.Add(-time.Hour))}, settings{due: now, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.Group("g"), asynq.Queue("q"), asynq.TaskID("7")}, settings{due: now, maxRetry: 25, later: true, queue: "q", id: "7"}},
	} {
		if got := settingsOf(tt.opts, now); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.opts, got, tt.want)
		}
	}
}
