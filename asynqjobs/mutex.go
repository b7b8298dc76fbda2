package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// Options say how tasks take turns. The zero value, and nil, mean the defaults. All
// programs that enqueue or run the same tasks have the same.
type Options struct {
	// Jobs is what is the same for all queues: the policy, how many tasks of a key are
	// runnable, what happens to the place of a task that failed, limits, Observe.
	Jobs jobs.Options
	// Key returns the key of a task that was not enqueued by a Mutex: by a scheduler, or a
	// program that knows nothing of keys. It takes its place when a worker has it first.
	// "" is for a task that excludes no other. Default: no such task has a key.
	Key func(*asynq.Task) (string, error)
}

// Mutex lets Asynq's tasks of one key take turns. It is safe for concurrent use, and for
// several servers.
type Mutex struct {
	options Options
	dibs    *dibs.Client
	jobs    *jobs.Mutex
	asynq   *asynq.Client
	redis   redis.UniversalClient

	sweeping sync.WaitGroup
	begin    sync.Once    // of the sweep: an asynq.ServeMux calls Middleware for each task
	logged   atomic.Int64 // when, in Unix seconds
	life     context.Context
	end      context.CancelFunc
}

// New returns a Mutex for the queues on that Redis, with connections of its own, and with
// its keys where c has them. The error names the option that is wrong.
func New(r asynq.RedisConnOpt, c *dibs.Client, o *Options) (*Mutex, error) {
	m := &Mutex{dibs: c}
	if o != nil {
		m.options = *o
	}
	var err error
	if m.jobs, err = jobs.New(c, &m.options.Jobs); err != nil {
		return nil, err
	}
	m.options.Jobs = m.jobs.Options()
	var ok bool
	if r != nil {
		m.redis, ok = r.MakeRedisClient().(redis.UniversalClient)
	}
	if !ok {
		return nil, fmt.Errorf("asynqjobs: a %T makes no Redis client; give what asynq.NewServer is given", r)
	}
	m.asynq = asynq.NewClientFromRedisClient(m.redis)
	m.life, m.end = context.WithCancel(context.Background())
	return m, nil
}

// Stats counts what happened to tasks in this process.
func (m *Mutex) Stats() jobs.Stats { return m.jobs.Stats() }

// Stop ends waiting: tasks that wait in a worker come back at once. Call it between the
// server's Stop and its Shutdown.
func (m *Mutex) Stop() { m.jobs.Close() }

// Close ends the connections. Call it after the server's Shutdown.
func (m *Mutex) Close() error {
	m.Stop()
	m.end()
	m.sweeping.Wait()
	return m.redis.Close()
}

// Middleware is an asynq.MiddlewareFunc, for ServeMux.Use. It belongs before all others,
// because what it returns for a task that is put off is for the server alone.
//
// A task whose turn has not come waits in the worker or is parked. When it has come, next
// gets a context that ends when the task's key is lost (cause dibs.ErrLost), and that
// jobs.FromContext reads.
func (m *Mutex) Middleware(next asynq.Handler) asynq.Handler {
	m.begin.Do(func() { m.sweeping.Go(m.sweepEach) })
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		key := t.Headers()[headerKey]
		if key == "" && m.options.Key != nil {
			var err error
			if key, err = m.options.Key(t); err != nil {
				return err
			}
		}
		if key == "" {
			return next.ProcessTask(ctx, t)
		}
		a, err := m.attempt(ctx, t, key)
		if err == nil && a.spared() {
			err = a.refuse()
		}
		if err != nil {
			return err
		}
		return a.run(next)
	})
}

// sweepEach sweeps each second until the Mutex is closed.
func (m *Mutex) sweepEach() {
	for each := time.Tick(sweepEach); ; {
		select {
		case <-each:
		case <-m.life.Done():
			return
		}
		m.log(m.sweep(m.life))
	}
}

// log notes that Redis could not be asked, once a minute: a later sweep mends what was
// left.
func (m *Mutex) log(err error) {
	now := time.Now().Unix()
	if last := m.logged.Load(); err != nil && !errors.Is(err, context.Canceled) && now-last >= 60 && m.logged.CompareAndSwap(last, now) {
		m.options.Jobs.Logger.Warn("dibs: parked tasks may be late: Asynq's Redis could not be asked", "error", err)
	}
}
