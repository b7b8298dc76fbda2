package asynqjobs

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/redisstore"
)

// fixture is a program with a mutex and all that belongs to it.
type fixture struct {
	redis     asynq.RedisClientOpt
	mutex     *Mutex
	plain     *asynq.Client
	inspector *asynq.Inspector
	fetched   fetches
}

// newFixture makes a program that ends with the test; options may be nil.
func newFixture(t testing.TB, r asynq.RedisClientOpt, o *jobs.Options) *fixture {
	t.Helper()
	store, err := redisstore.Open(t.Context(), storeURL(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	return newFixtureOn(t, store, r, o)
}

// newFixtureOn is newFixture with its keys on that store, which the client closes.
func newFixtureOn(t testing.TB, store dibs.Store, r asynq.RedisClientOpt, o *jobs.Options) *fixture {
	t.Helper()
	if o == nil {
		o = &jobs.Options{}
	}
	o.Logger = slog.New(slog.DiscardHandler)
	client, err := dibs.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{redis: r, plain: asynq.NewClient(r), inspector: asynq.NewInspector(r)}
	if f.mutex, err = New(r, client, &Options{Jobs: *o, Key: keyOfPlain}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, end := range []func() error{f.mutex.Close, f.plain.Close, f.inspector.Close, client.Close} {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
	return f
}

// keyOfPlain is the key of tasks that were enqueued by a plain client: their payload.
func keyOfPlain(t *asynq.Task) (string, error) {
	if t.Type() != "plain" {
		return "", nil
	}
	return string(t.Payload()), nil
}

// serve runs the handler until the test is over, or stop is called.
func (f *fixture) serve(t testing.TB, c asynq.Config, handler asynq.HandlerFunc) (stop func()) {
	t.Helper()
	if c.Concurrency == 0 {
		c.Concurrency = 10
	}
	if c.RetryDelayFunc == nil {
		c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	}
	c.TaskCheckInterval = 5 * time.Millisecond
	c.DelayedTaskCheckInterval = 20 * time.Millisecond
	c.ShutdownTimeout = 100 * time.Millisecond // handlers that wait for ever are not waited for
	c.Logger = quiet{}
	server := asynq.NewServer(f.redis, Config(c))
	if err := server.Start(f.fetched.count(f.mutex.Middleware(handler))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return server.Shutdown
}

// enqueue enqueues a task, which has to work.
func (f *fixture) enqueue(t testing.TB, task *Task, opts ...asynq.Option) *asynq.TaskInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	info, err := f.mutex.EnqueueContext(ctx, task, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// cancel cancels a task that a worker has, when the only Asynq server of the database
// listens: what is published before that is lost, and a second time might reach the task
// when it comes back.
func (f *fixture) cancel(t *testing.T, id string) {
	t.Helper()
	c := f.mutex.redis.(*redis.Client)
	eventually(t, "the server listens", func() bool {
		all, err := c.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		return err == nil && strings.Contains(all, fmt.Sprintf(" db=%d sub=1 ", f.redis.DB))
	})
	if err := f.inspector.CancelProcessing(id); err != nil {
		t.Fatal(err)
	}
}
