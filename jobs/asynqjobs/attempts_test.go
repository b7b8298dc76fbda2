package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

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

// TestLastAttempt: however a task ends on its last attempt, it is archived, does not run
// again, and the next one of its key runs at once.
func TestLastAttempt(t *testing.T) {
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
// comes back in order. So does a task that runs there, even on its last attempt.
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
