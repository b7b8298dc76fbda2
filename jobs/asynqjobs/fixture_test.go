package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// fixture is a program with a mutex and all that belongs to it.
type fixture struct {
	redis     asynq.RedisClientOpt
	mutex     *Mutex
	plain     *asynq.Client
	inspector *asynq.Inspector
	did       record
	gates     gates

	mu      sync.Mutex
	fetched map[string]int // how often its workers had each task
	inside  map[string]int // how many of its workers have one of each key that is not over
	most    int            // of a key, at once
	running map[string]int // how many tasks of each key run
}

// parallel runs the test beside others, with a program and a database of its own.
func parallel(t *testing.T, o *jobs.Options) *fixture {
	t.Parallel()
	return newFixture(t, ownRedis(t), o)
}

// newFixture makes a program that ends with the test, and with it the store, if another one
// than Redis is given; options may be nil.
func newFixture(t testing.TB, r asynq.RedisClientOpt, o *jobs.Options, stores ...dibs.Store) *fixture {
	t.Helper()
	if stores == nil {
		store, err := redisstore.Open(t.Context(), storeURL(r), nil)
		testkit.Must(t, err)
		stores = append(stores, store)
	}
	if o == nil {
		o = &jobs.Options{}
	}
	o.Logger = slog.New(slog.DiscardHandler)
	client, err := dibs.New(stores[0], nil)
	testkit.Must(t, err)
	f := &fixture{
		redis: r, plain: asynq.NewClient(r), inspector: asynq.NewInspector(r),
		fetched: map[string]int{}, inside: map[string]int{}, running: map[string]int{},
	}
	// The key of tasks of the type "plain" is their payload.
	key := func(t *asynq.Task) (string, error) {
		return map[bool]string{true: string(t.Payload())}[t.Type() == "plain"], nil
	}
	f.mutex, err = New(r, client, &Options{Jobs: *o, Key: key})
	testkit.Must(t, err)
	t.Cleanup(func() {
		testkit.Must(t, errors.Join(f.mutex.Close(), f.plain.Close(), f.inspector.Close(), client.Close()))
	})
	return f
}

// serve runs the handler until the test is over, or stop is called. It fails the test when
// more tasks of a key run at once than have permits.
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
	c.ShutdownTimeout = 100 * time.Millisecond // handlers that wait forever are not waited for
	c.LogLevel = asynq.FatalLevel
	turns := f.mutex.Middleware(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		key := task.Headers()[headerKey]
		if n := f.add(f.running, key, 1); key != "" && n > max(f.mutex.options.Jobs.Permits, 1) && f.mutex.options.Jobs.AfterLimit == 0 {
			t.Errorf("%d tasks of key %s run at once", n, key)
		}
		defer f.add(f.running, key, -1)
		defer ctx.Value(overKey{}).(func())() // it has run: it holds nothing any more
		return handler(ctx, task)
	}))
	server := asynq.NewServer(f.redis, Config(c))
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		f.add(f.fetched, id, 1)
		key := task.Headers()[headerKey]
		n := f.add(f.inside, key, 1)
		over := sync.OnceFunc(func() { f.add(f.inside, key, -1) })
		defer over()
		if key != "" {
			f.mu.Lock()
			f.most = max(f.most, n)
			f.mu.Unlock()
		}
		return turns.ProcessTask(context.WithValue(ctx, overKey{}, over), task)
	})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return server.Shutdown
}

// overKey is the context key of a function that is called when the task has run.
type overKey struct{}

// work is a handler that says what it does, and waits for a gate of the task's name.
func (f *fixture) work(ctx context.Context, task *asynq.Task) error {
	f.did.add("%s", task.Payload())
	return f.gates.wait(ctx, string(task.Payload()))
}

// note is a handler that says what it does.
func (f *fixture) note(_ context.Context, task *asynq.Task) error {
	f.did.add("%s", task.Payload())
	return nil
}

func (f *fixture) add(counts map[string]int, name string, n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts[name] += n
	return counts[name]
}

// atMost fails the test if a task was fetched more often, or more workers had a key.
func (f *fixture) atMost(t testing.TB, often, workers int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, n := range f.fetched {
		if n > often {
			t.Errorf("task %s was fetched %d times, want %d at most", id, n, often)
		}
	}
	if f.most > workers {
		t.Errorf("%d workers had tasks of one key, want %d at most", f.most, workers)
	}
}

// job returns a task that the records call by that name.
func job(key, name string, opts ...asynq.Option) *Task {
	return NewTask("job", []byte(name), key, opts...)
}

// plain returns a task that a client which knows nothing of keys enqueues.
func plain(key string, opts ...asynq.Option) *Task { return NewTask("plain", []byte(key), "", opts...) }

// enqueue enqueues a task, which has to work.
func (f *fixture) enqueue(t testing.TB, task *Task, opts ...asynq.Option) *asynq.TaskInfo {
	t.Helper()
	var info *asynq.TaskInfo
	var err error
	if task.Type == "plain" {
		info, err = f.plain.Enqueue(asynq.NewTaskWithHeaders(task.Type, task.Payload, task.Headers), task.Options...)
	} else {
		info, err = f.mutex.EnqueueContext(t.Context(), task, opts...)
	}
	testkit.Must(t, err)
	return info
}

// cancel cancels a task that a worker has, when the only Asynq server of the database
// listens: what is published before that is lost, and a second time might reach the task
// when it comes back.
func (f *fixture) cancel(t *testing.T, id string) {
	t.Helper()
	testkit.Eventually(t, "the server listens", func() bool {
		all, err := f.mutex.redis.(*redis.Client).Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		return err == nil && strings.Contains(all, fmt.Sprintf(" db=%d sub=1 ", f.redis.DB))
	})
	testkit.Must(t, f.inspector.CancelProcessing(id))
}

func (f *fixture) info(t testing.TB) *asynq.QueueInfo {
	t.Helper()
	info, err := f.inspector.GetQueueInfo("default")
	testkit.Must(t, err)
	return info
}

// parked fails the test unless want tasks are parked and no task has failed.
func (f *fixture) parked(t testing.TB, want int) {
	t.Helper()
	if info := f.info(t); info.Scheduled != want || info.Failed != 0 || info.Archived != 0 {
		t.Errorf("%+v; want %d to be parked", info, want)
	}
}

// state returns the state of a task, 0 for a task that does not exist.
func (f *fixture) state(id string) asynq.TaskState {
	info, err := f.inspector.GetTaskInfo("default", id)
	if err != nil {
		return 0
	}
	return info.State
}

// becomes waits until a task has a state.
func (f *fixture) becomes(t testing.TB, id string, want asynq.TaskState) *asynq.TaskInfo {
	t.Helper()
	testkit.Eventually(t, fmt.Sprint("the task is ", want), func() bool { return f.state(id) == want })
	info, _ := f.inspector.GetTaskInfo("default", id)
	return info
}

// gone waits until a task is done and forgotten.
func (f *fixture) gone(t testing.TB, id string) {
	t.Helper()
	f.becomes(t, id, 0)
}

// record is what handlers have done.
type record struct {
	mu    sync.Mutex
	lines []string
}

func (r *record) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *record) read() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// has waits until something was done.
func (r *record) has(t testing.TB, line string) {
	t.Helper()
	testkit.Eventually(t, line, func() bool { return slices.Contains(r.read(), line) })
}

// is waits until as much was done as is wanted, and fails the test unless it is that.
func (r *record) is(t testing.TB, want ...string) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%v", want), func() bool { return len(r.read()) >= len(want) })
	if got := r.read(); !slices.Equal(got, want) {
		t.Errorf("done was %q, want %q", got, want)
	}
}

// gates hold handlers up until they are opened.
type gates struct{ byName sync.Map }

func (g *gates) gate(name string) chan struct{} {
	c, _ := g.byName.LoadOrStore(name, make(chan struct{}))
	return c.(chan struct{})
}

func (g *gates) open(names ...string) {
	for _, name := range names {
		close(g.gate(name))
	}
}

// wait returns when the gate is open, or why not.
func (g *gates) wait(ctx context.Context, name string) error {
	select {
	case <-g.gate(name):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
