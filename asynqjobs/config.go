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

// Defaults of what a server's configuration leaves open. Asynq's own, 1 s and 5 s, are
// times for which a key lies idle.
const (
	DefaultTaskCheckInterval        = 20 * time.Millisecond // how often an idle server looks for tasks
	DefaultDelayedTaskCheckInterval = time.Second           // how often it looks for tasks to be tried again
)

// Config returns the configuration with what tasks with a key need of a server. It is
// used once, however many Mutexes the server's handlers have:
//
//	server := asynq.NewServer(redis, asynqjobs.Config(asynq.Config{Concurrency: 20}))
//
// A task that is put off is no failure, comes back when it shall, and the ErrorHandler
// is not called for it. A task with a key whose worker died comes back as soon as Asynq
// has noticed. IsFailure must call it a failure when a task panics, runs out of time or
// loses its worker. Everything else is asked of the functions that c has. Where they are
// zero, TaskCheckInterval and DelayedTaskCheckInterval have the defaults above.
//
// At most half of c.Concurrency workers have a task that waits for its turn, for each
// Mutex. It is not to be changed in what Config returns.
func Config(c asynq.Config) asynq.Config {
	delay := c.RetryDelayFunc
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	workers := c.Concurrency
	if workers < 1 {
		workers = runtime.NumCPU() // as Asynq does it
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
		if p, ok := errors.AsType[*putOffError](err); ok {
			return p.back.After
		}
		if last, ok := maxRetryOf(t); ok && (n >= last || errors.Is(err, asynq.ErrLeaseExpired)) {
			return 0 // it comes back to be archived, or was away for a minute already
		}
		return delay(n, own(err), t)
	}
	isFailure := c.IsFailure
	c.IsFailure = func(err error) bool {
		if _, ok := errors.AsType[*putOffError](err); ok {
			return false
		}
		err = own(err)
		return isFailure == nil && err != nil || isFailure != nil && isFailure(err)
	}
	if handler := c.ErrorHandler; handler != nil {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
			if _, ok := errors.AsType[*putOffError](err); !ok {
				handler.HandleError(withMaxRetry(ctx, t), t, own(err))
			}
		})
	}
	c.TaskCheckInterval = cmp.Or(c.TaskCheckInterval, DefaultTaskCheckInterval)
	c.DelayedTaskCheckInterval = cmp.Or(c.DelayedTaskCheckInterval, DefaultDelayedTaskCheckInterval)
	return c
}

// server is what a Mutex has to know of the server whose task it has.
type server struct {
	delay asynq.RetryDelayFunc // its own
	pool  jobs.Pool
}

// serverKey is that of a server in a task's context, which also says that Config was used.
type serverKey struct{}

// GetMaxRetry is asynq.GetMaxRetry for the contexts of handlers and of the ErrorHandler: it
// returns what was asked for. For tasks with a key Asynq's own returns one more.
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
