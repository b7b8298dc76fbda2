package asynqjobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// TestKilled: wherever a worker dies, its task comes back before the next ones of its key,
// which were parked, and runs again unless it is remembered that it has run; on its last
// attempt it does not.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		point string
		opts  []asynq.Option
		want  []string
	}{
		{"before the claim", nil, []string{"1", "2", "3"}},
		{"after the grant", nil, []string{"1", "2", "3"}},
		{"in the handler", nil, []string{"1", "2", "3"}},
		{"before the settlement", nil, []string{"1", "1", "2", "3"}},
		{"after the settlement", nil, []string{"1", "2", "3"}},
		{"in the handler", []asynq.Option{asynq.MaxRetry(0)}, []string{"2", "3"}},
	} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			r := ownRedis(t)
			p := plan{Redis: r, Ahead: 1, Back: time.Hour}
			dies := p
			if tt.point != "after the settlement" { // which a lost lease has no record of
				dies.TTL = time.Second
			}
			f := newFixture(t, r, p.options())
			first := f.enqueue(t, job("k", "1", tt.opts...))
			f.enqueue(t, job("k", "2"))
			last := f.enqueue(t, job("k", "3"))
			child := startChild(t, tt.point, dies)
			child.Await()
			child.Kill()
			if err := f.mutex.redis.Del(t.Context(), "inside k").Err(); err != nil { // the dead are not inside
				t.Fatal(err)
			}
			// A minute passes, as far as Asynq knows; it looks when a server starts.
			old := redis.Z{Member: first.ID, Score: float64(time.Now().Add(-time.Minute).Unix())}
			testkit.Must(t, f.mutex.redis.ZAddXX(t.Context(), "asynq:{default}:lease", old).Err())
			startChild(t, "", p)
			f.gone(t, last.ID)
			if got := f.mutex.redis.LRange(t.Context(), "done k", 0, -1).Val(); !slices.Equal(got, tt.want) {
				t.Errorf("%v ran, want %v", got, tt.want)
			}
			if crowd := f.mutex.redis.LRange(t.Context(), "crowd", 0, -1).Val(); len(crowd) > 0 {
				t.Errorf("%v began beside another", crowd)
			}
			if len(tt.opts) == 0 {
				f.gone(t, first.ID)
			} else if got := f.becomes(t, first.ID, asynq.TaskStateArchived); !strings.HasPrefix(got.LastErr, refusal) {
				t.Errorf("it was archived with %q", got.LastErr)
			}
		})
	}
}

// TestKilledWhileItWaits: a worker that is killed while its task waits for its turn blocks the key
// for Grace, and not for CrashGrace. The task comes again when Asynq has noticed.
func TestKilledWhileItWaits(t *testing.T) {
	t.Parallel()
	r := ownRedis(t)
	p := plan{Redis: r, Ahead: 8, Grace: 300 * time.Millisecond, Back: time.Hour}
	f := newFixture(t, r, p.options())
	lease, err := f.mutex.dibs.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	first := f.enqueue(t, job("k", "1"))
	child := startChild(t, "in the wait", p)
	child.Await()
	child.Kill()
	testkit.Must(t, lease.Release())
	f.serve(t, asynq.Config{}, f.note)
	f.enqueue(t, job("k", "2"))
	f.did.is(t, "2")
	old := redis.Z{Member: first.ID, Score: float64(time.Now().Add(-time.Minute).Unix())}
	testkit.Must(t, f.mutex.redis.ZAddXX(t.Context(), "asynq:{default}:lease", old).Err())
	f.serve(t, asynq.Config{}, f.note) // Asynq looks when a server starts
	f.did.is(t, "2", "1")
}

// plan is what a process with workers does: it writes down the tasks that it has run, in the list
// "done KEY", and those that began beside another one of their key, in the list "crowd".
type plan struct {
	Redis asynq.RedisClientOpt
	TTL   time.Duration
	Ahead int
	Grace time.Duration // default: Back
	Back  time.Duration // CrashGrace
}

// workers is how many such a process has.
const workers = 10

func (p *plan) options() *jobs.Options {
	return &jobs.Options{Ahead: p.Ahead, Grace: cmp.Or(p.Grace, p.Back), CrashGrace: p.Back, Once: time.Hour, Logger: slog.New(slog.DiscardHandler)}
}

// reaching is a store that has points to be killed at.
type reaching struct{ *redisstore.Store }

func (r *reaching) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	failpoint.Reach("before the claim")
	err := r.Store.Claim(ctx, claims, answers)
	for i, a := range answers {
		if a.State == store.Granted {
			failpoint.Reach("after the grant")
		}
		if claims[i].Mode == store.Queue && a.State == store.Held {
			failpoint.Reach("in the wait")
		}
	}
	return err
}

func (r *reaching) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	failpoint.Reach("before the settlement")
	err := r.Store.Settle(ctx, settlements, errs)
	failpoint.Reach("after the settlement")
	return err
}

// beChild works by a plan until its standard input ends, and then shuts down.
func beChild(args []string) error {
	var p plan
	if err := json.Unmarshal([]byte(args[0]), &p); err != nil {
		return err
	}
	store, err := redisstore.Open(context.Background(), storeURL(p.Redis), nil)
	if err != nil {
		return err
	}
	client, err := dibs.New(&reaching{store}, &dibs.Options{TTL: p.TTL})
	if err != nil {
		return err
	}
	mutex, err := New(p.Redis, client, &Options{Jobs: *p.options()})
	if err != nil {
		return err
	}
	c := mutex.redis
	handler := func(ctx context.Context, t *asynq.Task) error {
		ctx = context.WithoutCancel(ctx)
		key, name := t.Headers()[headerKey], string(t.Payload())
		inside := c.Incr(ctx, "inside "+key).Val()
		defer c.Decr(ctx, "inside "+key)
		failpoint.Reach("in the handler")
		if inside != 1 {
			c.RPush(ctx, "crowd", key+" "+name)
		}
		return c.RPush(ctx, "done "+key, name).Err()
	}
	server := asynq.NewServer(p.Redis, Config(asynq.Config{
		Concurrency:              workers,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		LogLevel:                 asynq.FatalLevel,
	}))
	if err := server.Start(mutex.Middleware(asynq.HandlerFunc(handler))); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	server.Stop()
	mutex.Stop()
	server.Shutdown()
	return errors.Join(err, mutex.Close(), client.Close())
}

// startChild starts a process with workers that stops at a point. If it has none, startChild
// returns when its workers work.
func startChild(t testing.TB, point string, p plan) *failpoint.Child {
	t.Helper()
	text, err := json.Marshal(p)
	testkit.Must(t, err)
	c := failpoint.Start(t, point, testkit.Child("work", string(text)))
	if point == "" {
		c.Says() // it is ready
	}
	return c
}
