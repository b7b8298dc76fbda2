package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// TestAhead: of the tasks of a key the first are pending and all others are parked. They
// run in their order, none is fetched more than twice, no more workers than that have the
// key, tasks of other keys are not held up, and nothing is left of the line.
func TestAhead(t *testing.T) {
	t.Parallel()
	const all = 40
	for _, tt := range []struct{ ahead, workers int }{{1, 1}, {1, 10}, {2, 10}, {8, 1}, {8, 4}, {8, 20}} {
		t.Run(fmt.Sprintf("%d of %d workers", tt.ahead, tt.workers), func(t *testing.T) {
			f := parallel(t, &jobs.Options{Ahead: tt.ahead})
			var want []string
			for n := range all {
				want = append(want, strconv.Itoa(n))
				f.enqueue(t, job("k", want[n], asynq.MaxRetry(0)))
			}
			f.parked(t, all-tt.ahead)
			other := f.enqueue(t, job("other", "other"))
			f.serve(t, asynq.Config{Concurrency: tt.workers}, func(ctx context.Context, task *asynq.Task) error {
				if string(task.Payload()) == "other" {
					f.gates.open("others are done")
					return nil
				}
				f.did.add("%s", task.Payload())
				if tt.workers > 1 {
					return f.gates.wait(ctx, "others are done")
				}
				return nil
			})
			f.gone(t, other.ID)
			f.did.is(t, want...)
			testkit.Eventually(t, "nothing is left", func() bool {
				left := f.mutex.redis.Keys(t.Context(), "asynq:{default}:*").Val()
				return !slices.ContainsFunc(left, func(name string) bool {
					return strings.Contains(name, "line") || strings.Contains(name, "after") || strings.Contains(name, "parked") || strings.Contains(name, ":t:")
				})
			})
			f.atMost(t, 2, tt.ahead)
			f.parked(t, 0)
		})
	}
}

// TestManyHotKeys: at most half of the workers have a task that waits, however many keys
// have a line, and those that found no room are fetched once more, by whichever program.
func TestManyHotKeys(t *testing.T) {
	t.Parallel()
	const keys, each, workers = 12, 15, 6
	r := ownRedis(t)
	first, second := newFixture(t, r, nil), newFixture(t, r, nil)
	var want []string
	for n := range each {
		want = append(want, strconv.Itoa(n))
		for k := range keys {
			first.enqueue(t, NewTask(strconv.Itoa(k), []byte(want[n]), fmt.Sprint("key ", k)))
		}
	}
	did := make([]record, keys)
	for _, f := range []*fixture{first, second} {
		f.serve(t, asynq.Config{Concurrency: workers}, func(_ context.Context, task *asynq.Task) error {
			if n := f.mutex.Stats().Waiting; n > workers/2 {
				t.Errorf("%d of %d workers have a task that waits", n, workers)
			}
			k, _ := strconv.Atoi(task.Type())
			did[k].add("%s", task.Payload())
			return nil
		})
	}
	for k := range did {
		did[k].is(t, want...)
	}
	second.mu.Lock()
	defer second.mu.Unlock()
	for id, n := range second.fetched {
		first.add(first.fetched, id, n)
	}
	first.atMost(t, 2, jobs.DefaultAhead)
}

// TestPromote: of those that come first the parked ones are made pending, in front, and
// everything else stays as it is.
func TestPromote(t *testing.T) {
	t.Parallel()
	mark, stale := newMark(), newMark()
	putOff := func(text string) error { return &requeueError{&jobs.RequeueError{After: time.Hour}, text} }
	parked := func() error { return putOff(" (parked, " + mark + ")") }
	for _, tt := range []struct {
		name   string
		before int          // of the key, which are not over
		ends   func() error // in a worker
		mark   string       // in the line
		want   asynq.TaskState
	}{
		{"parked", 2, nil, mark, asynq.TaskStatePending},
		{"parked, and not among the first", 3, nil, mark, asynq.TaskStateScheduled},
		{"parked by a worker, and next", 0, parked, mark, asynq.TaskStatePending},
		{"parked by a worker, and not next", 1, parked, mark, asynq.TaskStateRetry},
		{"scheduled by the caller", 0, nil, "", asynq.TaskStateScheduled},
		{"scheduled by the caller, with the ID of a parked task", 0, nil, stale, asynq.TaskStateScheduled},
		{"failed", 0, func() error { return errors.New("it failed, (parked, 7)") }, "", asynq.TaskStateRetry},
		{"failed after it was parked", 0, func() error { return errors.New("it failed, (parked, 7)") }, stale, asynq.TaskStateRetry},
		{"requeued, and not parked", 0, func() error { return putOff("") }, "", asynq.TaskStateRetry},
		{"completed", 0, func() error { return nil }, mark, asynq.TaskStateCompleted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := parallel(t, &jobs.Options{Ahead: 3})
			opts := []asynq.Option{asynq.TaskID("7"), asynq.Retention(time.Hour)}
			if tt.ends == nil {
				opts = append(opts, asynq.ProcessIn(time.Hour))
			}
			it := plain("", opts...)
			it.Headers = map[string]string{headerParked: mark}
			if tt.ends != nil {
				it.Headers = nil
			}
			f.enqueue(t, it)
			if tt.ends != nil {
				fails := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}
				stop := f.serve(t, fails, func(context.Context, *asynq.Task) error { return tt.ends() })
				testkit.Eventually(t, "it has ended", func() bool { return f.state("7") >= asynq.TaskStateScheduled })
				stop()
			}
			for range tt.before {
				f.enter(t, f.enqueue(t, plain("")).ID)
			}
			f.enqueue(t, plain("")) // another one
			f.enter(t, "7")
			if tt.mark != "" {
				_, err := f.mutex.enter(t.Context(), "default", "k", "7", "", tt.mark)
				testkit.Must(t, err)
			}
			for range 2 { // it is the same twice
				f.mutex.leave(t.Context(), "default", "k", "")
				if got := f.state("7"); got != tt.want {
					t.Errorf("it is %v, want %v", got, tt.want)
				}
			}
			line := names("default", f.mutex.dibs.Key("k").Digest())[0]
			stays := f.mutex.redis.ZScore(t.Context(), line, "7").Err() == nil
			if over := tt.want == asynq.TaskStateCompleted; stays == over {
				t.Errorf("it is in the line: %v", stays)
			}
			next := f.mutex.redis.LIndex(t.Context(), "asynq:{default}:pending", -1).Val()
			if tt.want == asynq.TaskStatePending && next != "7" {
				t.Errorf("it is not next: %s is", next)
			}
		})
	}
}

// TestOverlap: where several enqueue tasks of a key at once, the order of their entries may
// not be that of their places. The task with the first place is made runnable all the same.
func TestOverlap(t *testing.T) {
	const others = 12
	f := parallel(t, &jobs.Options{Ahead: 2, Grace: time.Hour, CrashGrace: time.Hour})
	f.serve(t, asynq.Config{}, f.work)
	f.enqueue(t, job("k", "runs"))
	f.did.has(t, "runs")
	f.enqueue(t, job("k", "waits"))
	want := []string{"runs", "waits"}
	before, err := f.mutex.number(t.Context(), "default")
	testkit.Must(t, err)
	for n := others; n > 0; n-- { // the entries are in the order of their IDs
		w := settings{id: fmt.Sprintf("%02d", n), queue: "default", due: time.Now()}
		want = append(want, w.id)
		_, err := f.mutex.place(t.Context(), job("k", w.id), w, before, []asynq.Option{asynq.TaskID(w.id), asynq.MaxRetry(3)})
		testkit.Must(t, err)
	}
	f.parked(t, others)
	f.gates.open(want...)
	f.did.is(t, want...)
}

// TestEnqueuingCrashes: a program that dies before it enqueues a task leaves a place and an
// entry. The others go on when the place has been in their way for Grace.
func TestEnqueuingCrashes(t *testing.T) {
	f := parallel(t, &jobs.Options{Ahead: 2, Grace: 100 * time.Millisecond})
	var want []string
	for n := range 12 {
		_, err := f.mutex.jobs.Enqueue(t.Context(), jobs.Job{Key: "k"})
		testkit.Must(t, err)
		f.enter(t, fmt.Sprint("dead ", n))
		want = append(want, strconv.Itoa(n))
		f.enqueue(t, job("k", want[n]))
	}
	f.serve(t, asynq.Config{}, f.note)
	testkit.Eventually(t, "all have run", func() bool { return len(f.did.read()) == len(want) })
	got := f.did.read()
	slices.Sort(got) // one that is later than Grace is passed by others
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("done was %v, want %v", got, want)
	}
}

// enter writes an entry, behind all others.
func (f *fixture) enter(t *testing.T, id string) {
	t.Helper()
	before, err := f.mutex.number(t.Context(), "default")
	if err == nil {
		_, err = f.mutex.enter(t.Context(), "default", "k", id, before, newMark())
	}
	testkit.Must(t, err)
}

// TestDeployment: a version with another Ahead, one with other Permits, and one that knows of
// no lines: with a backlog, while both run, all tasks run and none fails; in their order, as
// long as one runs at a time.
func TestDeployment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		old, new jobs.Options
		lost     bool // the lines are
	}{
		{"fewer", jobs.Options{Ahead: 8}, jobs.Options{Ahead: 2}, false},
		{"more", jobs.Options{Ahead: 1}, jobs.Options{Ahead: 8}, false},
		{"without lines", jobs.Options{}, jobs.Options{Ahead: 3}, true},
		{"more permits", jobs.Options{}, jobs.Options{Permits: 2}, false},
		{"fewer permits", jobs.Options{Permits: 3}, jobs.Options{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := ownRedis(t)
			before, after := newFixture(t, r, &tt.old), newFixture(t, r, &tt.new)
			config := asynq.Config{ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { t.Error(err) })}
			var want []string
			for n := range 30 {
				want = append(want, strconv.Itoa(n))
				[]*fixture{before, after}[n/10%2].enqueue(t, job("k", want[n], asynq.MaxRetry(0)))
			}
			if tt.lost {
				digest := before.mutex.dibs.Key("k").Digest()
				testkit.Must(t, before.mutex.redis.Del(t.Context(), names("default", digest)...).Err())
				if _, err := before.inspector.RunAllScheduledTasks("default"); err != nil { // their time has come
					t.Fatal(err)
				}
			}
			before.serve(t, config, before.work)
			before.did.has(t, "0")
			after.serve(t, config, before.work)
			before.gates.open(want...)
			testkit.Eventually(t, "all have run", func() bool { return len(before.did.read()) == len(want) })
			if got := before.did.read(); tt.old.Permits == tt.new.Permits && !slices.Equal(got, want) {
				t.Errorf("done was %v, want %v", got, want)
			}
		})
	}
}

// TestEnqueue: what a task is given arrives.
func TestEnqueue(t *testing.T) {
	f := parallel(t, nil)
	task := job("k", "payload", asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Queue("first"))
	task.Headers = map[string]string{"trace": "17"}
	for range 2 {
		info := f.enqueue(t, task, asynq.Queue("second"))
		got, err := f.inspector.GetTaskInfo("second", info.ID)
		testkit.Must(t, err)
		if got.Type != "job" || string(got.Payload) != "payload" || got.Timeout != time.Minute || got.MaxRetry != 3+spare {
			t.Errorf("%+v", got)
		}
		h := got.Headers
		if h["trace"] != "17" || h[headerKey] != "k" || h[headerTicket] == "" || h[headerRetry] != "3" || h[headerDue] == "" || len(h) != 5 {
			t.Errorf("the headers are %v", h)
		}
	}
	if len(task.Headers) != 1 || len(task.Options) != 3 {
		t.Errorf("the task was changed: %+v", task)
	}
	info := f.enqueue(t, job("", "without a key"))
	if got, err := f.inspector.GetTaskInfo("default", info.ID); err != nil || len(got.Headers) != 0 || got.MaxRetry != 25 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, task := range []*Task{nil, job(strings.Repeat("k", 513), "")} {
		if info, err := f.mutex.EnqueueContext(t.Context(), task); err == nil {
			t.Errorf("it was enqueued: %+v", info)
		}
	}
}

// TestNotEnqueued: a task that could not be enqueued blocks no other task, and neither does the
// place of one whose enqueuing was rolled back, for longer than Grace.
func TestNotEnqueued(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		opts []asynq.Option
		want error
	}{
		{"duplicate", []asynq.Option{asynq.Unique(time.Minute)}, asynq.ErrDuplicateTask},
		{"same ID", []asynq.Option{asynq.TaskID("7")}, asynq.ErrTaskIDConflict},
		{"wrong option", []asynq.Option{asynq.Queue(" ")}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := parallel(t, &jobs.Options{Grace: time.Hour, Ahead: 1})
			if tt.want != nil {
				f.enqueue(t, job("other", "same", append(tt.opts, asynq.ProcessIn(time.Hour))...))
			}
			if _, err := f.mutex.EnqueueContext(t.Context(), job("k", "same", tt.opts...)); err == nil || !errors.Is(err, tt.want) && tt.want != nil {
				t.Error(err)
			}
			f.serve(t, asynq.Config{}, f.note)
			f.enqueue(t, job("k", "next"))
			f.did.is(t, "next")
			if tt.want != nil && f.info(t).Scheduled != 1 {
				t.Error("the task that was there is not scheduled any more")
			}
		})
	}
}

// TestEnqueueUnknown: a parked task that Redis has although its enqueuing failed is made runnable
// in its turn.
func TestEnqueueUnknown(t *testing.T) {
	f := parallel(t, &jobs.Options{Grace: time.Hour, Ahead: 1})
	f.enqueue(t, job("k", "first"))
	f.mutex.redis.AddHook(&cutOff{})
	if _, err := f.mutex.EnqueueContext(t.Context(), job("k", "unknown")); err == nil {
		t.Fatal("nothing was cut off")
	}
	f.enqueue(t, job("k", "last"))
	f.serve(t, asynq.Config{}, f.note)
	f.did.is(t, "first", "unknown", "last")
}

// cutOff loses the first answer to a command that schedules a task.
type cutOff struct{ done atomic.Bool }

func (*cutOff) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*cutOff) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *cutOff) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		// The first EVALSHA of a script may say that Redis does not know it.
		if err == nil && strings.Contains(fmt.Sprint(cmd.Args()), ":scheduled") && !c.done.Swap(true) {
			err = errors.New("the connection was cut off")
			cmd.SetErr(err)
		}
		return err
	}
}

// TestLater: a task that runs later takes its place when it does, and so does one of a client
// that knows nothing of keys.
func TestLater(t *testing.T) {
	f := parallel(t, &jobs.Options{Grace: time.Hour})
	f.serve(t, asynq.Config{}, f.work)
	later := f.enqueue(t, job("k", "later", asynq.ProcessIn(time.Hour)))
	if h := later.Headers; h[headerTicket] != "" || h[headerKey] != "k" {
		t.Errorf("its headers are %v", h)
	}
	f.enqueue(t, job("k", "now"))
	f.did.has(t, "now")
	if err := f.inspector.RunTask("default", later.ID); err != nil { // its time has come
		t.Fatal(err)
	}
	testkit.Eventually(t, "the later one has a place", func() bool { return f.mutex.Stats().Waiting == 1 })
	f.enqueue(t, plain("k"))
	testkit.Eventually(t, "the plain one has a place", func() bool { return f.mutex.Stats().Waiting == 2 })
	f.enqueue(t, job("k", "last"))
	f.gates.open("now", "later", "k", "last")
	f.did.is(t, "now", "later", "k", "last")
}

// TestSettingsOf: the last option counts, and what is not for later is for now.
func TestSettingsOf(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		opts []asynq.Option
		want settings
	}{
		{nil, settings{due: now, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.MaxRetry(3), asynq.MaxRetry(-1)}, settings{due: now, maxRetry: 0, queue: "default"}},
		{[]asynq.Option{asynq.ProcessIn(time.Hour)}, settings{due: now.Add(time.Hour), later: true, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.ProcessIn(time.Hour), asynq.ProcessAt(now.Add(-time.Hour))}, settings{due: now, maxRetry: 25, queue: "default"}},
		{[]asynq.Option{asynq.Group("g"), asynq.Queue("q"), asynq.TaskID("7")}, settings{due: now, maxRetry: 25, later: true, queue: "q", id: "7"}},
	} {
		if got := settingsOf(tt.opts, now); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.opts, got, tt.want)
		}
	}
}
