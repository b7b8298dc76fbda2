package asynqjobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"runtime"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/jobs"
)

// Defaults of Config. They replace Asynq's 1 s and 5 s, because a key would be idle for that
// time.
const (
	DefaultTaskCheckInterval        = 20 * time.Millisecond // how often an idle server looks for tasks
	DefaultDelayedTaskCheckInterval = time.Second           // how often it looks for tasks to be tried again
)

// Config returns the configuration with the settings that tasks with a key need. Use it
// once for a server, however many Mutexes its handlers have:
//
//	server := asynq.NewServer(redis, asynqjobs.Config(asynq.Config{Concurrency: 20}))
//
// A requeued task is not a failure, comes back at its time, and does not reach the
// ErrorHandler. A task with a key whose worker died comes back as soon as Asynq has
// noticed. IsFailure must return true when a task panics, times out or loses its worker.
// Config calls the functions of c for everything else. If they are zero,
// TaskCheckInterval and DelayedTaskCheckInterval get the defaults above.
//
// For each Mutex, at most half of c.Concurrency workers have a waiting task. Do not
// change Concurrency in the result.
func Config(c asynq.Config) asynq.Config {
	delay := c.RetryDelayFunc
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	workers := c.Concurrency
	if workers < 1 {
		workers = runtime.NumCPU() // Asynq's default
	}
	its := &server{delay: delay, pool: jobs.Pool{Name: "asynq " + rand.Text(), Workers: workers}}
	base := c.BaseContext
	c.BaseContext = func() context.Context {
		ctx := context.Background()
		if base != nil {
			ctx = base()
		}
		return context.WithValue(ctx, serverKey{}, its)
	}
	c.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if p, ok := errors.AsType[*requeueError](err); ok {
			return p.back.After
		}
		if last, ok := maxRetryOf(t); ok && (n >= last || err == asynq.ErrLeaseExpired) {
			return 0 // it comes back to be archived, or has waited a minute already
		}
		return delay(n, handlerError(err), t)
	}
	isFailure := c.IsFailure
	c.IsFailure = func(err error) bool {
		if _, ok := errors.AsType[*requeueError](err); ok {
			return false
		}
		err = handlerError(err)
		return isFailure == nil && err != nil || isFailure != nil && isFailure(err)
	}
	if handler := c.ErrorHandler; handler != nil {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
			if _, ok := errors.AsType[*requeueError](err); !ok {
				handler.HandleError(withMaxRetry(ctx, t), t, handlerError(err))
			}
		})
	}
	c.TaskCheckInterval = cmp.Or(c.TaskCheckInterval, DefaultTaskCheckInterval)
	c.DelayedTaskCheckInterval = cmp.Or(c.DelayedTaskCheckInterval, DefaultDelayedTaskCheckInterval)
	return c
}

// server is what a Mutex needs to know of the server.
type server struct {
	delay asynq.RetryDelayFunc // the configuration's own
	pool  jobs.Pool
}

// serverKey is the context key of a server. Its presence says that Config was used.
type serverKey struct{}

// GetMaxRetry is asynq.GetMaxRetry for handlers and the ErrorHandler: it returns the
// number that the caller set. Asynq's own function returns one more for tasks with a key.
func GetMaxRetry(ctx context.Context) (n int, ok bool) {
	if n, ok := ctx.Value(maxRetryKey{}).(int); ok {
		return n, true
	}
	return asynq.GetMaxRetry(ctx)
}

type maxRetryKey struct{}

func withMaxRetry(ctx context.Context, t *asynq.Task) context.Context {
	if n, ok := maxRetryOf(t); ok {
		return context.WithValue(ctx, maxRetryKey{}, n)
	}
	return ctx
}
