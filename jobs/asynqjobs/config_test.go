package asynqjobs

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// TestConfig: a requeued task is not a failure and comes back at its time; all
// else is as it was, and said by the functions that were there.
func TestConfig(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	keyed := asynq.NewTaskWithHeaders("x", nil, map[string]string{headerKey: "k", headerRetry: "3"})
	plain := asynq.NewTask("x", nil)
	bare := Config(asynq.Config{})
	for _, tt := range []struct {
		name    string
		err     error
		task    *asynq.Task
		n       int
		delay   time.Duration
		failure bool // and the functions that were there are asked about it
	}{
		{"requeued", &requeueError{back: &jobs.RequeueError{After: time.Second}}, keyed, 0, time.Second, false},
		{"failed for good", &lastError{boom}, keyed, 3, 0, true},
		{"of another handler", boom, plain, 1, time.Hour, true},
		{"dead worker", asynq.ErrLeaseExpired, keyed, 1, 0, true},
		{"dead worker of another handler", asynq.ErrLeaseExpired, plain, 1, time.Hour, true},
		{"no attempts left", context.DeadlineExceeded, keyed, 3, 0, true},
	} {
		var failure, handled bool
		want := tt.err
		if errors.Is(want, boom) {
			want = boom // as the handler returned it
		}
		c := Config(Config(asynq.Config{ // twice does no harm
			IsFailure:      func(err error) bool { failure = err == want; return true },
			ErrorHandler:   asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { handled = err == want }),
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
		}))
		if d := c.RetryDelayFunc(tt.n, tt.err, tt.task); d != tt.delay {
			t.Errorf("%s: it comes back after %v, want %v", tt.name, d, tt.delay)
		}
		if with, without := c.IsFailure(tt.err), bare.IsFailure(tt.err); with != tt.failure || without != tt.failure {
			t.Errorf("%s: a failure: %v, and %v without IsFailure; want %v", tt.name, with, without, tt.failure)
		}
		c.ErrorHandler.HandleError(t.Context(), tt.task, tt.err)
		if failure != tt.failure || handled != tt.failure {
			t.Errorf("%s: IsFailure was asked: %v, ErrorHandler: %v, want %v", tt.name, failure, handled, tt.failure)
		}
	}
	if bare.IsFailure(nil) || bare.ErrorHandler != nil || bare.TaskCheckInterval != DefaultTaskCheckInterval || bare.DelayedTaskCheckInterval != DefaultDelayedTaskCheckInterval {
		t.Errorf("%+v", bare)
	}
	c := Config(asynq.Config{
		TaskCheckInterval: time.Minute, DelayedTaskCheckInterval: time.Hour,
		BaseContext: func() context.Context { return context.WithValue(t.Context(), maxRetryKey{}, 17) },
	})
	if n, _ := GetMaxRetry(c.BaseContext()); n != 17 || c.TaskCheckInterval != time.Minute || c.DelayedTaskCheckInterval != time.Hour {
		t.Errorf("%d, %+v", n, c)
	}
	// The pool has the number of workers, also Asynq's default.
	for asked, want := range map[int]int{0: runtime.NumCPU(), -1: runtime.NumCPU(), 7: 7} {
		its, ok := Config(asynq.Config{Concurrency: asked}).BaseContext().Value(serverKey{}).(*server)
		if !ok || its.pool.Workers != want || its.pool.Name == "" {
			t.Errorf("of %d workers the server is known to have %+v, want %d", asked, its.pool, want)
		}
	}
}

// TestSetUp: a wrong set-up is an error, and no task runs without its key.
func TestSetUp(t *testing.T) {
	f := parallel(t, nil)
	handler := f.mutex.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		t.Error("it ran")
		return nil
	}))
	if err := handler.ProcessTask(t.Context(), asynq.NewTask("plain", []byte("k"))); !errors.Is(err, errNoServer) {
		t.Error(err)
	}
	noKey := errors.New("no key")
	f.mutex.options.Key = func(*asynq.Task) (string, error) { return "", noKey }
	if err := handler.ProcessTask(t.Context(), asynq.NewTask("x", nil)); err != noKey {
		t.Error(err)
	}
	server := asynq.NewServer(f.redis, asynq.Config{LogLevel: asynq.FatalLevel})
	testkit.Must(t, server.Start(handler))
	t.Cleanup(server.Shutdown)
	info := f.enqueue(t, job("k", "x"))
	if got := f.becomes(t, info.ID, asynq.TaskStateRetry); got.LastErr != errNoConfig.Error() {
		t.Errorf("it says %q", got.LastErr)
	}
	_, noRedis := New(nil, f.mutex.dibs, nil)
	_, anotherRedis := New(nothing{}, f.mutex.dibs, nil)
	_, noClient := New(f.redis, nil, nil)
	if noRedis == nil || anotherRedis == nil || noClient == nil {
		t.Error(noRedis, anotherRedis, noClient)
	}
}

// nothing makes what is not a Redis client.
type nothing struct{}

func (nothing) MakeRedisClient() any { return nothing{} }

// A missing handler is found before a task is taken.
func TestNoHandler(t *testing.T) {
	t.Parallel()
	defer func() {
		if said, _ := recover().(string); said != "asynqjobs: Middleware was given no handler; pass the handler of the tasks" {
			t.Errorf("it panicked with %q", said)
		}
	}()
	new(Mutex).Middleware(nil)
}
