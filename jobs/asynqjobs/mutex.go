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

// Options configures a Mutex. nil and the zero value mean the defaults. All programs that
// enqueue or run the same tasks must use the same.
type Options struct {
	// Jobs are the options that do not depend on the queue: policy, Ahead, what happens
	// to the place of a failed task, limits, Logger, Observe.
	Jobs jobs.Options
	// Key returns the key of a task that no Mutex enqueued, for example of a scheduler.
	// Such a task gets its place when it first reaches a worker. "": it excludes no other
	// task. Default: such tasks have no key.
	Key func(*asynq.Task) (string, error)
}

// Mutex serializes the tasks of each key. It is safe for concurrent use, and for several
// servers.
type Mutex struct {
	options Options
	dibs    *dibs.Client
	jobs    *jobs.Mutex
	asynq   *asynq.Client
	redis   redis.UniversalClient

	sweeping sync.WaitGroup
	logged   atomic.Int64 // time of the last warning, in Unix seconds
	closing  context.Context
	end      context.CancelFunc
}

// recovered is how long Asynq needs, at most, to give the task of a dead worker to another:
// its lease of 30 s, 30 s for clocks that differ, and a minute between two looks.
const recovered = 2 * time.Minute

// New returns a Mutex for the queues on that Redis. It has its own connections to it. The
// keys are in c's store. Until Close, the Mutex looks once a second for parked tasks that a
// crash has left, and makes them pending. The error names the wrong option.
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
	if o := &m.options.Jobs; m.lines() && o.CrashGrace < recovered {
		o.Logger.Warn(fmt.Sprintf("asynqjobs: later tasks pass a task whose worker died: Asynq gives it to another worker after up to %v, but Jobs.CrashGrace is %v; set it to that at least", recovered, o.CrashGrace))
	}
	var ok bool
	if r != nil {
		m.redis, ok = r.MakeRedisClient().(redis.UniversalClient)
	}
	if !ok {
		return nil, fmt.Errorf("asynqjobs: a %T makes no Redis client; pass the argument of asynq.NewServer", r)
	}
	m.asynq = asynq.NewClientFromRedisClient(m.redis)
	m.closing, m.end = context.WithCancel(context.Background())
	m.sweeping.Go(m.sweepEach) // not with the first task, because all tasks may be parked
	return m, nil
}

// Stats counts the events of tasks in this process.
func (m *Mutex) Stats() jobs.Stats { return m.jobs.Stats() }

// Stop ends waiting: tasks that wait in a worker are requeued at once. Call it between
// the server's Stop and its Shutdown.
func (m *Mutex) Stop() { m.jobs.Close() }

// Close closes the connections. Call it after the server's Shutdown.
func (m *Mutex) Close() error {
	m.Stop()
	m.end()
	m.sweeping.Wait()
	return m.redis.Close()
}

// Middleware is an asynq.MiddlewareFunc, for ServeMux.Use. Use it before all other
// middleware, because only the server may see its errors for requeued tasks.
//
// A task whose turn has not come waits in the worker or is parked. Then next runs with a
// context that ends when the task's key is lost (cause dibs.ErrLost). jobs.FromContext
// reads the context. It panics if next is nil.
func (m *Mutex) Middleware(next asynq.Handler) asynq.Handler {
	if next == nil {
		panic("asynqjobs: Middleware was given no handler; pass the handler of the tasks")
	}
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
		if err == nil && a.isSpare() {
			err = a.refuse()
		}
		if err != nil {
			return err
		}
		return a.run(next)
	})
}

// sweepEach sweeps every second until the Mutex is closed.
func (m *Mutex) sweepEach() {
	for each := time.Tick(sweepEach); ; {
		select {
		case <-each:
		case <-m.closing.Done():
			return
		}
		m.log(m.sweep(m.closing))
	}
}

// log warns at most once a minute. A later sweep repairs what was left.
func (m *Mutex) log(err error) {
	now := time.Now().Unix()
	if last := m.logged.Load(); err != nil && !errors.Is(err, context.Canceled) && now-last >= 60 && m.logged.CompareAndSwap(last, now) {
		m.options.Jobs.Logger.Warn("dibs: parked tasks may be late, because Asynq's Redis did not answer", "error", err)
	}
}
