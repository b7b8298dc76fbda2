package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/jobs"
)

// TestEnqueue: what a task is given arrives.
func TestEnqueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t, ownRedis(t), nil)
	task := job("k", "payload", asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Queue("first"))
	task.Headers = map[string]string{"trace": "17"}
	for range 2 {
		info := f.enqueue(t, task, asynq.Queue("second"))
		got, err := f.inspector.GetTaskInfo("second", info.ID)
		if err != nil {
			t.Fatal(err)
		}
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

// TestNotEnqueued: a task that could not be enqueued is in nobody's way, and neither is
// one of whose enqueuing nothing came but its place, for longer than Hold.
func TestNotEnqueued(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		hold time.Duration
		not  func(*testing.T, *fixture)
	}{
		{"duplicate", time.Hour, func(t *testing.T, f *fixture) {
			if _, err := f.mutex.EnqueueContext(t.Context(), job("other", "same", asynq.Unique(time.Minute), asynq.ProcessIn(time.Hour))); err != nil {
				t.Fatal(err)
			}
			if _, err := f.mutex.EnqueueContext(t.Context(), job("k", "same", asynq.Unique(time.Minute))); !errors.Is(err, asynq.ErrDuplicateTask) {
				t.Error(err)
			}
		}},
		{"same ID", time.Hour, func(t *testing.T, f *fixture) {
			if _, err := f.mutex.EnqueueContext(t.Context(), job("other", "one", asynq.TaskID("7"), asynq.ProcessIn(time.Hour))); err != nil {
				t.Fatal(err)
			}
			if _, err := f.mutex.EnqueueContext(t.Context(), job("k", "two", asynq.TaskID("7"))); !errors.Is(err, asynq.ErrTaskIDConflict) {
				t.Error(err)
			}
		}},
		{"wrong option", time.Hour, func(t *testing.T, f *fixture) {
			if _, err := f.mutex.EnqueueContext(t.Context(), job("k", "x", asynq.Queue(" "))); err == nil {
				t.Error("it was enqueued")
			}
		}},
		{"rolled back", time.Second, func(t *testing.T, f *fixture) {
			if _, err := f.mutex.jobs.Enqueue(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}},
		{"cancelled in the queue", time.Second, func(t *testing.T, f *fixture) {
			if err := f.inspector.DeleteTask("default", f.enqueue(t, job("k", "x")).ID); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, ownRedis(t), &jobs.Options{Hold: tt.hold})
			tt.not(t, f)
			var did record
			begin := time.Now()
			f.serve(t, asynq.Config{}, func(_ context.Context, task *asynq.Task) error {
				did.add("%s", task.Payload())
				return nil
			})
			f.enqueue(t, job("k", "next"))
			did.is(t, "next")
			took := time.Since(begin)
			t.Logf("the next one ran after %v", took.Round(time.Millisecond))
			if tt.hold < time.Minute && took < tt.hold {
				t.Errorf("the next one ran after %v; the place should be in the way for %v", took, tt.hold)
			}
		})
	}
}

// TestLater: a task that runs later takes its place when it does, and so does one of a
// client that knows nothing of keys.
func TestLater(t *testing.T) {
	t.Parallel()
	f := newFixture(t, ownRedis(t), &jobs.Options{Hold: time.Hour})
	var did record
	var g gates
	f.serve(t, asynq.Config{}, func(ctx context.Context, task *asynq.Task) error {
		name := string(task.Payload())
		did.add("%s begins", name)
		defer did.add("%s ends", name)
		return g.wait(ctx, name)
	})
	later := f.enqueue(t, job("k", "later", asynq.ProcessIn(time.Hour)))
	if h := later.Headers; h[headerTicket] != "" || h[headerKey] != "k" {
		t.Errorf("its headers are %v", h)
	}
	f.enqueue(t, job("k", "now"))
	did.has(t, "now begins")
	if err := f.inspector.RunTask("default", later.ID); err != nil { // its time has come
		t.Fatal(err)
	}
	eventually(t, "the later one has a place", func() bool {
		s := f.mutex.Stats()
		return s.Waiting == 1
	})
	if _, err := f.plain.Enqueue(asynq.NewTask("plain", []byte("k"))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the plain one has a place", func() bool {
		s := f.mutex.Stats()
		return s.Waiting == 2
	})
	f.enqueue(t, job("k", "last"))
	for _, name := range []string{"now", "later", "k", "last"} {
		did.has(t, name+" begins")
		g.open(name)
	}
	var want []string
	for _, name := range []string{"now", "later", "k", "last"} {
		want = append(want, name+" begins", name+" ends")
	}
	did.is(t, want...)
}

// TestWishOf: the last option counts, and what is not for later is for now.
func TestWishOf(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		opts []asynq.Option
		want wish
	}{
		{nil, wish{due: now, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.MaxRetry(3), asynq.MaxRetry(-1)}, wish{due: now, maxRetry: 0, queue: "default"}},
		{[]asynq.Option{asynq.ProcessIn(time.Hour)}, wish{due: now.Add(time.Hour), later: true, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.ProcessIn(time.Hour), asynq.ProcessAt(now.Add(-time.Hour))}, wish{due: now, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.Group("g"), asynq.Queue("q"), asynq.TaskID("7")}, wish{due: now, maxRetry: 25, grouped: true, queue: "q", id: "7"}},
	} {
		t.Run(fmt.Sprint(tt.opts), func(t *testing.T) {
			t.Parallel()
			if got := wishOf(tt.opts, now); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}
