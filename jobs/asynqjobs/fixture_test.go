package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
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

// scope owns the servers that the tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	testkit.Main(m, testkit.Children{"work": beChild}, scope.Close)
}

var sharedRedis = sync.OnceValue(func() *servertest.RedisServer {
	return servertest.Redis(scope, &servertest.RedisOptions{Databases: 200})
})

var used atomic.Int64

// ownRedis returns a database that no other test of this run has.
func ownRedis(t testing.TB) asynq.RedisClientOpt {
	t.Helper()
	return asynq.RedisClientOpt{Addr: sharedRedis().Addr(), DB: int(used.Add(1))}
}

// storeURL is that of a store in the same database.
func storeURL(r asynq.RedisClientOpt) string { return fmt.Sprintf("redis://%s/%d", r.Addr, r.DB) }

// words are texts like those that this package and Asynq store with a task.
func words() map[string]string {
	id := "7"
	return map[string]string{
		"refusal":            refusal,
		"refusal and a mark": fmt.Sprintf("%s (%s)", refusal, newMark()),
		"requeued":           (&requeueError{&jobs.RequeueError{}, " (parked, " + id + ")"}).Error(),
		"names":              strings.Join([]string{headerParked, headerKey, fieldRefused, "dibs-parked " + id}, " "),
	}
}

// TestPanickingTaskWithOurWordsRunsOnce: whatever a task's payload and headers say, it does not
// run again after it panicked on its last try, until an operator makes it run.
func TestPanickingTaskWithOurWordsRunsOnce(t *testing.T) {
	t.Parallel()
	for name, text := range words() {
		t.Run(name, func(t *testing.T) {
			f := parallel(t, nil)
			f.serve(t, asynq.Config{}, func(context.Context, *asynq.Task) error {
				f.did.add("ran")
				panic(text)
			})
			task := NewTask("job", []byte(text), "k", asynq.MaxRetry(0), asynq.TaskID("7"))
			task.Headers = map[string]string{"note": text}
			info := f.enqueue(t, task)
			f.becomes(t, info.ID, asynq.TaskStateArchived)
			f.did.is(t, "ran")
			testkit.Must(t, f.inspector.RunTask("default", info.ID))
			f.did.is(t, "ran", "ran")
		})
	}
}

// TestFailedTaskWithOurWordsWaits: whatever a task's payload, headers and errors say, it waits
// for its RetryDelayFunc when it has failed, even if a worker had parked it before.
func TestFailedTaskWithOurWordsWaits(t *testing.T) {
	t.Parallel()
	for name, text := range words() {
		t.Run(name, func(t *testing.T) {
			f := parallel(t, nil)
			config := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}
			f.serve(t, config, func(ctx context.Context, _ *asynq.Task) error {
				_, err := f.mutex.enter(ctx, "default", "k", "7", "", newMark()) // as a worker does that parks it
				testkit.Must(t, err)
				return errors.New(text)
			})
			task := NewTask("job", []byte(text), "k", asynq.TaskID("7"))
			task.Headers = map[string]string{"note": text}
			f.becomes(t, f.enqueue(t, task).ID, asynq.TaskStateRetry)
			testkit.Must(t, f.mutex.promote(t.Context(), "default", f.mutex.dibs.Key("k").Digest(), "", 8, 1))
			if got := f.state("7"); got != asynq.TaskStateRetry {
				t.Errorf("it is %v before its time", got)
			}
		})
	}
}

// TestReservedHeadersAreLeftOut: a task that is enqueued again with its old headers has only
// those that its caller gave it.
func TestReservedHeadersAreLeftOut(t *testing.T) {
	f := parallel(t, nil)
	done := make(chan map[string]string, 2)
	f.serve(t, asynq.Config{}, func(_ context.Context, task *asynq.Task) error {
		done <- task.Headers()
		return nil
	})
	f.enqueue(t, job("k", "first"))
	old := <-done
	old["own"] = "stays"
	again := NewTask("job", nil, "")
	again.Headers = old
	f.enqueue(t, again)
	if got := <-done; len(got) != 1 || got["own"] != "stays" {
		t.Errorf("a task without a key has the headers %v", got)
	}
}

// TestTaskIDsOfTwoQueues: tasks of two queues are not taken for each other, whatever their IDs
// and queues are called.
func TestTaskIDsOfTwoQueues(t *testing.T) {
	f := parallel(t, &jobs.Options{Once: time.Hour})
	f.serve(t, asynq.Config{Queues: map[string]int{"a": 1, "a:b": 1}}, f.note)
	f.enqueue(t, job("k", "one", asynq.Queue("a:b"), asynq.TaskID("c")))
	f.did.is(t, "one")
	f.enqueue(t, job("k", "two", asynq.Queue("a"), asynq.TaskID("b:c")))
	f.did.is(t, "one", "two")
}

// TestSweepNeedsNoTask: of the tasks of a key, all that were runnable are deleted before a server
// starts. The parked tasks run, although no task comes to the server.
func TestSweepNeedsNoTask(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		remove func(*asynq.Inspector, string, string) error
	}{
		{"deleted", (*asynq.Inspector).DeleteTask},
		{"archived", (*asynq.Inspector).ArchiveTask},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ownRedis(t)
			before := newFixture(t, r, &jobs.Options{Ahead: 3, Grace: 100 * time.Millisecond})
			var want []string
			for n := range 8 {
				name := fmt.Sprint(n)
				info := before.enqueue(t, job("k", name))
				if n < 3 {
					testkit.Must(t, tt.remove(before.inspector, "default", info.ID))
				} else {
					want = append(want, name)
				}
			}
			f := newFixture(t, r, &jobs.Options{Ahead: 3, Grace: 100 * time.Millisecond})
			f.serve(t, asynq.Config{}, f.note)
			for _, name := range want {
				f.did.has(t, name)
			}
		})
	}
}
