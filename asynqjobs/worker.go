package asynqjobs

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/jobs"
)

// Options say how a Worker treats tasks. The zero value, and nil, mean the defaults.
type Options struct {
	// Key returns the key of a task that was not enqueued by a Client: by a scheduler,
	// or a program that knows nothing of keys. It takes its place when a worker has it
	// first. "" is for a task that excludes nobody. Default: no such task has a key.
	Key func(*asynq.Task) (string, error)
}

// Worker lets tasks take turns before their handlers run. It is safe for concurrent
// use, and for several servers.
type Worker struct {
	mutex   *jobs.Mutex
	options Options
	redis   redis.UniversalClient
	shared  bool // the connections are not the Worker's
}

// NewWorker returns a Worker for the tasks on that Redis, where it has connections of
// its own. Close ends them.
func NewWorker(r asynq.RedisConnOpt, m *jobs.Mutex, o *Options) (*Worker, error) {
	if r == nil {
		return nil, errors.New("asynqjobs: NewWorker was given no Redis; give it what asynq.NewServer is given")
	}
	c, ok := r.MakeRedisClient().(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("asynqjobs: NewWorker was given a %T, which makes no client; give it what asynq.NewServer is given", r)
	}
	w, err := NewWorkerFromRedisClient(c, m, o)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	w.shared = false
	return w, nil
}

// NewWorkerFromRedisClient is NewWorker with a client that is shared with others, and
// that Close leaves alone.
func NewWorkerFromRedisClient(c redis.UniversalClient, m *jobs.Mutex, o *Options) (*Worker, error) {
	if m == nil {
		return nil, errors.New("asynqjobs: a Worker needs a jobs.Mutex; make one with jobs.New")
	}
	w := &Worker{mutex: m, redis: c, shared: true}
	if o != nil {
		w.options = *o
	}
	return w, nil
}

// Close ends the connections. Call it after the server's Shutdown, and that after the
// Mutex's Close.
func (w *Worker) Close() error {
	if w.shared {
		return nil
	}
	return w.redis.Close()
}

// Middleware is an asynq.MiddlewareFunc, for ServeMux.Use. It belongs before all
// others, as what it returns for a task that is put off is for the server alone.
//
// A task whose turn has not come is put off, or waits a moment, as the Options of the
// Mutex say. When its turn has come, next gets a context that ends when the task's key
// is lost (cause dibs.ErrLost), and that jobs.FromContext reads.
func (w *Worker) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		key, err := w.key(t)
		if err != nil {
			return err
		}
		if key == "" {
			return next.ProcessTask(ctx, t)
		}
		a, err := w.attempt(ctx, t)
		if err != nil {
			return err
		}
		if a.spared() {
			if err := a.refuse(); err != nil {
				return err
			}
		}
		return a.run(key, next)
	})
}

// key returns the key of a task.
func (w *Worker) key(t *asynq.Task) (string, error) {
	if key := t.Headers()[headerKey]; key != "" || w.options.Key == nil {
		return key, nil
	}
	return w.options.Key(t)
}

//go:embed wake.lua
var wakeText string

// wakeScript sends its text only when the server does not know it.
var wakeScript = redis.NewScript(wakeText)

// taskName and prefix are Asynq's names in Redis, the same since its version 0.18.
func prefix(queue string) string       { return "asynq:{" + queue + "}:" }
func taskName(queue, id string) string { return prefix(queue) + "t:" + id }

// wake makes a task pending that was put off with that mark. It reports false if Asynq
// has not noted that yet, and jobs.ErrGone if somebody has deleted or archived the task.
func (w *Worker) wake(ctx context.Context, queue, id, mark string) (bool, error) {
	names := []string{taskName(queue, id), prefix(queue) + "retry", prefix(queue) + "pending"}
	switch done, err := wakeScript.Run(ctx, w.redis, names, id, mark, time.Now().UnixNano()).Text(); {
	case err != nil:
		return false, err
	case done == "gone":
		return false, jobs.ErrGone
	default:
		return done == "done", nil
	}
}
