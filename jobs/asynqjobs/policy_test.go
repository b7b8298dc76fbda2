package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// TestPolicies: while a task of a key runs, three more are enqueued.
func TestPolicies(t *testing.T) {
	t.Parallel()
	gaveUp := func(context.Context, jobs.Job, time.Duration) error { return nil }
	others, fail := []string{"2", "3", "4"}, []string{"failed", "failed", "failed"}
	for _, tt := range []struct {
		name    string
		options jobs.Options
		during  []string // what is done while the first one runs, in any order
		after   []string
	}{
		{"come back", jobs.Options{}, nil, others},
		{"wait", jobs.Options{Policy: jobs.Wait}, nil, others},
		{"skip", jobs.Options{Policy: jobs.Skip}, nil, nil},
		{"replace", jobs.Options{Policy: jobs.Replace, Ahead: 1}, nil, []string{"4"}},
		{"cancel running", jobs.Options{Policy: jobs.CancelRunning, Ahead: 1}, nil, nil},
		{"fail after the limit", jobs.Options{Limit: time.Second, AfterLimit: jobs.Fail}, fail, nil},
		{"run anyway after the limit", jobs.Options{Limit: time.Second, AfterLimit: jobs.RunAnyway}, others, nil},
		{"run anyway after the limit, parked", jobs.Options{Limit: time.Second, AfterLimit: jobs.RunAnyway, Ahead: 1}, others, nil},
		{"give up after the limit", jobs.Options{Limit: time.Second, AfterLimit: jobs.GiveUp, GaveUp: gaveUp}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := parallel(t, &tt.options)
			config := asynq.Config{ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
				if errors.Is(err, dibs.ErrHeld) {
					f.did.add("failed")
				}
			})}
			f.gates.open(others...)
			f.serve(t, config, f.work)
			first := f.enqueue(t, job("k", "1"))
			f.did.has(t, "1")
			var ids []string
			for _, name := range others {
				ids = append(ids, f.enqueue(t, job("k", name, asynq.MaxRetry(0))).ID)
			}
			end := map[bool]asynq.TaskState{true: asynq.TaskStateArchived}[slices.Contains(tt.during, "failed")]
			switch {
			case tt.options.Policy == jobs.CancelRunning:
				// The first one ends at once, and others may run before the newest has reached a worker.
				for _, id := range append(ids, first.ID) {
					f.gone(t, id)
				}
				if did := f.did.read(); did[len(did)-1] != "4" {
					t.Errorf("%q was done, want 4 at the end", did)
				}
				return
			case tt.options.Policy == jobs.Replace:
				// All have reached a worker, so that each knows of the newest.
				testkit.Eventually(t, "all wait", func() bool {
					s := f.mutex.Stats()
					return s.Waiting+int(s.Replaced) == 3
				})
			case tt.after == nil:
				for _, id := range ids {
					f.becomes(t, id, end)
				}
			}
			during := f.did.read()[1:]
			if slices.Sort(during); !slices.Equal(during, tt.during) {
				t.Errorf("%q was done while the first one ran, want %q", during, tt.during)
			}
			f.gates.open("1")
			f.gone(t, first.ID)
			for _, id := range ids {
				f.becomes(t, id, end)
			}
			if after := f.did.read()[1+len(during):]; !slices.Equal(after, tt.after) {
				t.Errorf("%q was done after the first one, want %q", after, tt.after)
			}
		})
	}
}

// TestOnce: what is delivered again after it was done does nothing; what had failed runs
// again.
func TestOnce(t *testing.T) {
	f := parallel(t, &jobs.Options{Once: time.Hour})
	f.serve(t, asynq.Config{}, func(ctx context.Context, task *asynq.Task) error {
		f.did.add("%s", task.Payload())
		if n, _ := asynq.GetRetryCount(ctx); n == 0 && string(task.Payload()) == "fails" {
			return errors.New("it failed")
		}
		return nil
	})
	for range 3 {
		// The sender of a webhook sends it again; Asynq has forgotten that it was there.
		f.gone(t, f.enqueue(t, job("k", "webhook", asynq.TaskID("webhook 7"))).ID)
	}
	f.gone(t, f.enqueue(t, job("k", "fails", asynq.TaskID("webhook 8"))).ID)
	f.did.is(t, "webhook", "fails", "fails")
}

// TestCancelled: tasks are cancelled while they wait, and while they run. They come again,
// as Asynq's always do, and in their order.
func TestCancelled(t *testing.T) {
	f := parallel(t, nil)
	f.serve(t, asynq.Config{}, func(ctx context.Context, task *asynq.Task) error {
		name := string(task.Payload())
		retried, _ := asynq.GetRetryCount(ctx)
		f.did.add("%s, retry %d", name, retried)
		if name == "runs" && retried == 0 {
			return f.gates.wait(ctx, "never")
		}
		return nil
	})
	runs := f.enqueue(t, job("k", "runs"))
	f.did.has(t, "runs, retry 0")
	waits := f.enqueue(t, job("k", "waits"))
	testkit.Eventually(t, "it waits in the worker", func() bool { return f.mutex.Stats().Waiting == 1 })
	f.cancel(t, waits.ID)
	testkit.Eventually(t, "it is tried again", func() bool {
		info, err := f.inspector.GetTaskInfo("default", waits.ID)
		return err == nil && info.Retried == 1
	})
	f.enqueue(t, job("k", "last"))
	f.cancel(t, runs.ID)
	f.did.is(t, "runs, retry 0", "runs, retry 1", "waits, retry 1", "last, retry 0")
}

// TestByHand: of the parked tasks the second one is deleted, archived or made to run. The others keep
// their order.
func TestByHand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		do    func(i *asynq.Inspector, queue, id string) error
		grace time.Duration // with two runnable tasks, one that is later than that is passed
		want  []string
	}{
		{"deleted", (*asynq.Inspector).DeleteTask, 100 * time.Millisecond, []string{"first", "next", "last"}},
		{"archived", (*asynq.Inspector).ArchiveTask, 100 * time.Millisecond, []string{"first", "next", "last"}},
		{"made to run", (*asynq.Inspector).RunTask, time.Hour, []string{"first", "next", "it", "last"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := parallel(t, &jobs.Options{Ahead: 1, Grace: tt.grace})
			f.serve(t, asynq.Config{}, f.work)
			f.enqueue(t, job("k", "first"))
			f.did.has(t, "first")
			var ids []string
			for _, name := range []string{"next", "it", "last"} {
				ids = append(ids, f.enqueue(t, job("k", name)).ID)
			}
			f.parked(t, len(ids))
			testkit.Must(t, tt.do(f.inspector, "default", ids[1]))
			if slices.Contains(tt.want, "it") {
				testkit.Eventually(t, "it waits in the worker", func() bool { return f.mutex.Stats().Waiting == 1 })
			}
			f.gates.open(tt.want...)
			f.did.is(t, tt.want...)
		})
	}
}

// TestOperatorsSeeTasks: of one key a task runs, two wait in workers and two are parked. The
// listing counts each once, and names it.
func TestOperatorsSeeTasks(t *testing.T) {
	t.Parallel()
	r := ownRedis(t)
	s, err := redisstore.Open(t.Context(), storeURL(r), nil)
	testkit.Must(t, err)
	f := newFixture(t, r, &jobs.Options{Ahead: 3, Grace: time.Minute}, s)
	f.serve(t, asynq.Config{}, f.work)
	f.enqueue(t, job("k", "0", asynq.TaskID("0")))
	f.did.has(t, "0")
	want := []string{"0"}
	for n := 1; n < 5; n++ {
		want = append(want, fmt.Sprint(n))
		f.enqueue(t, job("k", want[n], asynq.TaskID(want[n])))
	}
	var e store.Entry
	testkit.Eventually(t, "two wait", func() bool {
		for entry, err := range s.List(t.Context(), store.Query{Name: "k", Places: true}) {
			testkit.Must(t, err)
			e = entry
		}
		return e.Waiters == 2
	})
	if e.Reserved != 2 || len(e.Runs) != 1 || e.Runs[0].Owner.Label != "job default:0" {
		t.Errorf("%d places without a claim, and the leases %+v; want 2, and that of task 0", e.Reserved, e.Runs)
	}
	reserved := map[string]store.Use{}
	for _, p := range e.Places {
		if p.Reserved {
			reserved[p.Owner.Label] = p.Use
		}
		if p.Use == store.Unused && p.Blocks > time.Minute {
			t.Errorf("a task that did not begin can block for %v", p.Blocks)
		}
	}
	if want := map[string]store.Use{
		"job default:0": store.UsedByLease, "job default:1": store.UsedByWait, "job default:2": store.UsedByWait,
		"job default:3": store.Unused, "job default:4": store.Unused,
	}; !maps.Equal(reserved, want) {
		t.Errorf("the reserved places are %v, want %v", reserved, want)
	}
	f.gates.open(want...)
	f.did.is(t, want...)
}

// TestWaitingIsNotCounted: tasks that have one attempt only wait for many others of their key
// and are neither lost nor failed, even when their time is short or no Mutex enqueued them.
func TestWaitingIsNotCounted(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"with a short time", "plain"} {
		t.Run(name, func(t *testing.T) {
			f := parallel(t, nil)
			config := asynq.Config{
				Concurrency:  12,
				ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { f.did.add("%v", err) }),
			}
			f.serve(t, config, func(ctx context.Context, task *asynq.Task) error {
				n, _ := GetMaxRetry(ctx)
				f.did.add("%d retries", n)
				if string(task.Payload()) == "first" {
					return f.gates.wait(ctx, "first")
				}
				return nil
			})
			f.enqueue(t, job("k", "first", asynq.MaxRetry(5)))
			f.did.has(t, "5 retries")
			want := []string{"5 retries"}
			other := plain("k", asynq.MaxRetry(0))
			if name != "plain" {
				other = job("k", "other", asynq.MaxRetry(0), asynq.Timeout(40*time.Second))
			}
			for range 11 {
				want = append(want, "0 retries")
				f.enqueue(t, other)
			}
			if name != "plain" {
				// All those in the worker leave it when a quarter of their time is over.
				testkit.Eventually(t, "they leave the workers", func() bool { return f.info(t).Retry == jobs.DefaultAhead-1 })
			}
			f.gates.open("first")
			f.did.is(t, want...)
			f.parked(t, 0)
		})
	}
}

// TestLastTry: however a task ends on its last try, it is archived, does not run
// again, and the next one of its key runs at once.
func TestLastTry(t *testing.T) {
	t.Parallel()
	fails := errors.New("it failed")
	waits := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, tt := range []struct {
		name    string
		opts    []asynq.Option
		plain   bool
		run     func(context.Context) error
		cancel  bool
		wantErr string // "": it is not archived
	}{
		{name: "failed", run: func(context.Context) error { return fails }, wantErr: "it failed"},
		{name: "failed, plain", plain: true, run: func(context.Context) error { return fails }, wantErr: "it failed"},
		{name: "not to be tried again", opts: []asynq.Option{asynq.MaxRetry(9)}, run: func(context.Context) error { return asynq.SkipRetry }, wantErr: asynq.SkipRetry.Error()},
		{name: "revoked", opts: []asynq.Option{asynq.MaxRetry(9)}, run: func(context.Context) error { return asynq.RevokeTask }},
		{name: "panicked", run: func(context.Context) error { panic("it panicked") }, wantErr: refusal},
		{name: "ran out of time", opts: []asynq.Option{asynq.Timeout(5 * time.Second)}, run: waits, wantErr: refusal},
		{name: "cancelled", run: waits, cancel: true, wantErr: refusal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := parallel(t, &jobs.Options{Ahead: 1, Grace: time.Hour, CrashGrace: time.Hour})
			var handled atomic.Int64
			config := asynq.Config{ErrorHandler: asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, _ error) {
				retried, _ := asynq.GetRetryCount(ctx)
				if most, _ := GetMaxRetry(ctx); retried >= most {
					handled.Add(1)
				}
			})}
			f.serve(t, config, func(ctx context.Context, task *asynq.Task) error {
				f.did.add("%s", task.Payload())
				if string(task.Payload()) == "next" {
					return nil
				}
				return tt.run(ctx)
			})
			task := job("k", "k", asynq.MaxRetry(0))
			if tt.plain {
				task = plain("k", asynq.MaxRetry(0))
			}
			info := f.enqueue(t, task, tt.opts...)
			f.did.has(t, "k")
			f.enqueue(t, job("k", "next"))
			if tt.cancel {
				f.cancel(t, info.ID)
			}
			f.did.is(t, "k", "next")
			if tt.wantErr == "" {
				f.gone(t, info.ID)
				return
			}
			if got := f.becomes(t, info.ID, asynq.TaskStateArchived); !strings.HasPrefix(got.LastErr, tt.wantErr) {
				t.Errorf("it was archived with %q, want %q", got.LastErr, tt.wantErr)
			}
			if len(tt.opts) == 0 && handled.Load() == 0 {
				t.Error("the ErrorHandler does not see that no attempts are left")
			}
			if tt.wantErr == refusal {
				// Made to run by hand, it runs.
				testkit.Must(t, f.inspector.RunTask("default", info.ID))
				f.did.is(t, "k", "next", "k")
			}
		})
	}
}

// TestFailed: a task that failed and is tried again keeps the others of its key waiting, or
// lets them pass, however many have failed; one of them panics.
func TestFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		failed jobs.Failed
		want   []string
	}{
		{"keeps its place", jobs.KeepPlace, []string{"0", "0", "1", "1", "2", "2", "last"}},
		{"lets others pass", jobs.LetPass, []string{"0", "1", "2", "last", "0", "1", "2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := parallel(t, &jobs.Options{Failed: tt.failed, Ahead: 2})
			config := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
				return map[bool]time.Duration{true: time.Hour}[tt.failed == jobs.LetPass]
			}}
			var ids []string
			for n := range 3 {
				ids = append(ids, f.enqueue(t, job("k", fmt.Sprint(n))).ID)
			}
			f.enqueue(t, job("k", "last"))
			f.serve(t, config, func(ctx context.Context, task *asynq.Task) error {
				f.did.add("%s", task.Payload())
				if n, _ := asynq.GetRetryCount(ctx); n > 0 || string(task.Payload()) == "last" {
					return nil
				}
				if string(task.Payload()) == "1" {
					panic("it panicked")
				}
				return errors.New("it failed")
			})
			if tt.failed == jobs.LetPass {
				for i, id := range ids {
					f.did.has(t, "last")
					f.becomes(t, id, asynq.TaskStateRetry)
					testkit.Must(t, f.inspector.RunTask("default", id))
					f.did.is(t, tt.want[:5+i]...)
				}
			}
			f.did.is(t, tt.want...)
		})
	}
}

// TestStoreAway: a store that does not answer costs a task none of its attempts: it comes
// back, and runs when the store is there again.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	memory, err := memstore.New(nil)
	testkit.Must(t, err)
	store := &outage{Store: memory}
	f := newFixture(t, ownRedis(t), nil, store)
	f.serve(t, asynq.Config{}, f.note)
	store.away.Store(true)
	f.enqueue(t, plain("k", asynq.MaxRetry(1)))
	testkit.Eventually(t, "it is requeued", func() bool { return f.info(t).Retry > 0 })
	store.away.Store(false)
	f.did.is(t, "k")
	f.parked(t, 0)
}

// outage is a store that can be away.
type outage struct {
	*memstore.Store
	away atomic.Bool
}

func (o *outage) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if o.away.Load() {
		return errors.New("the store is away")
	}
	return o.Store.Claim(ctx, claims, answers)
}

// TestShutdown: a server that is shut down gives its key up at once, and what waits there
// comes back in order. So does a task that runs there, even on its last try.
func TestShutdown(t *testing.T) {
	t.Parallel()
	for _, retries := range []int{25, 0} {
		t.Run(fmt.Sprintf("%d retries", retries), func(t *testing.T) {
			t.Parallel()
			r := ownRedis(t)
			first, second := newFixture(t, r, nil), newFixture(t, r, nil)
			want := []string{"0"}
			first.enqueue(t, job("k", "0", asynq.MaxRetry(retries)))
			stop := first.serve(t, asynq.Config{Concurrency: 12}, first.work)
			first.did.has(t, "0")
			for n := range 20 {
				want = append(want, fmt.Sprint(n+1))
				first.enqueue(t, job("k", want[n+1]))
			}
			testkit.Eventually(t, "half of the workers wait", func() bool { return first.mutex.Stats().Waiting == 6 })
			second.serve(t, asynq.Config{}, second.note)
			first.mutex.Stop()
			stop()
			second.did.is(t, want...)
			first.did.is(t, "0")
		})
	}
}
