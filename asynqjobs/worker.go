package asynqjobs

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/jobs"
)

// Options say how a Worker treats tasks. The zero value, and nil, mean the defaults.
type Options struct {
	// Key returns the key of a task that was not enqueued by a Client: by a scheduler,
	// or a program that knows nothing of keys. It takes its place when a worker has it
	// first. "" is for a task that excludes nobody. Default: no such task has a key.
	Key func(*asynq.Task) (string, error)
}

// Worker lets tasks take turns before their handlers run, and makes parked tasks runnable.
// It is safe for concurrent use, and for several servers.
type Worker struct {
	options Options
	lines   *lines
	logged  atomic.Int64 // when, in Unix seconds
	end     context.CancelFunc
	swept   chan struct{} // closed when nothing sweeps any more
}

// NewWorker returns a Worker for the tasks on that Redis, with connections of its own.
func NewWorker(r asynq.RedisConnOpt, m *jobs.Mutex, o *Options) (*Worker, error) {
	l, err := openLines(r, m)
	if err != nil {
		return nil, err
	}
	w := &Worker{lines: l, swept: make(chan struct{})}
	if o != nil {
		w.options = *o
	}
	var ctx context.Context
	ctx, w.end = context.WithCancel(context.Background())
	go w.sweep(ctx)
	return w, nil
}

// Close ends the sweep and the connections. Call it after the server's Shutdown, and that
// after the Mutex's Close.
func (w *Worker) Close() error {
	w.end()
	<-w.swept
	return w.lines.redis.Close()
}

// sweep sweeps until ctx ends.
func (w *Worker) sweep(ctx context.Context) {
	defer close(w.swept)
	for each := time.Tick(sweepEach); ; {
		select {
		case <-each:
		case <-ctx.Done():
			return
		}
		if err := w.lines.sweep(ctx); err != nil && ctx.Err() == nil {
			w.log(err)
		}
	}
}

// log notes that Redis could not be asked, once a minute: a later sweep mends what was
// left.
func (w *Worker) log(err error) {
	now := time.Now().Unix()
	if last := w.logged.Load(); now-last >= 60 && w.logged.CompareAndSwap(last, now) {
		w.lines.options.Logger.Warn("dibs: parked tasks may be late: Asynq's Redis could not be asked", "error", err)
	}
}

// Middleware is an asynq.MiddlewareFunc, for ServeMux.Use. It belongs before all others,
// because what it returns for a task that is put off is for the server alone.
//
// A task whose turn has not come waits in the worker or is parked, as the Options of the
// Mutex say. When its turn has come, next gets a context that ends when the task's key
// is lost (cause dibs.ErrLost), and that jobs.FromContext reads.
func (w *Worker) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		key := t.Headers()[headerKey]
		if key == "" && w.options.Key != nil {
			var err error
			if key, err = w.options.Key(t); err != nil {
				return err
			}
		}
		if key == "" {
			return next.ProcessTask(ctx, t)
		}
		a, err := w.attempt(ctx, t, key)
		if err != nil {
			return err
		}
		if a.spared() {
			if err := a.refuse(); err != nil {
				return err
			}
		}
		return a.run(next)
	})
}
