package asynqjobs

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/redisstore"
	"github.com/dibs-go/dibs/store"
)

// planVar is the variable of the environment that makes the test binary a process with
// workers.
const planVar = "ASYNQJOBS_PLAN"

// plan is what such a process does: it writes down the tasks that it has run, in the list
// "done KEY", and those that began beside another one of their key, in the list "crowd".
type plan struct {
	Redis asynq.RedisClientOpt
	TTL   time.Duration
	Ahead int
	Hold  time.Duration // default: Back
	Back  time.Duration // Recovery
	Fails int           // one task of this many fails on its first attempt
}

// workers is how many such a process has.
const workers = 10

func (p *plan) options() *jobs.Options {
	return &jobs.Options{Ahead: p.Ahead, Hold: cmp.Or(p.Hold, p.Back), Recovery: p.Back, Once: time.Hour, Logger: slog.New(slog.DiscardHandler)}
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

// TestChild is what such a process runs: it works until its standard input ends, and then
// shuts down.
func TestChild(t *testing.T) {
	text := os.Getenv(planVar)
	if text == "" {
		t.Skip("it is for the processes that other tests start")
	}
	var p plan
	must(t, json.Unmarshal([]byte(text), &p))
	store, err := redisstore.Open(t.Context(), storeURL(p.Redis), nil)
	must(t, err)
	client, err := dibs.New(&reaching{store}, &dibs.Options{TTL: p.TTL})
	must(t, err)
	mutex, err := New(p.Redis, client, &Options{Jobs: *p.options()})
	must(t, err)
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
		n, _ := strconv.Atoi(name)
		if retried, _ := asynq.GetRetryCount(ctx); p.Fails > 0 && n%p.Fails == 0 && retried == 0 {
			return errors.New("it fails once")
		}
		return c.RPush(ctx, "done "+key, name).Err()
	}
	server := asynq.NewServer(p.Redis, Config(asynq.Config{
		Concurrency:              workers,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		LogLevel:                 asynq.FatalLevel,
	}))
	must(t, server.Start(mutex.Middleware(asynq.HandlerFunc(handler))))
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	must(t, err)
	server.Stop()
	mutex.Stop()
	server.Shutdown()
	must(t, errors.Join(mutex.Close(), client.Close()))
}

// child is a process with workers.
type child struct {
	*failpoint.Child
	in io.WriteCloser
}

// startChild starts a process with workers that stops at a point. If it has none, startChild
// returns when its workers work.
func startChild(t testing.TB, point string, p plan) *child {
	t.Helper()
	text, err := json.Marshal(p)
	must(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), planVar+"="+string(text))
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	c := &child{failpoint.Start(t, point, cmd), in}
	if point == "" {
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatalf("a process with workers says %q, %v", line, err)
		}
	}
	return c
}

// stop shuts it down and returns when it has ended.
func (c *child) stop(t testing.TB) {
	t.Helper()
	_ = c.in.Close()
	if err := c.Wait(); err != nil {
		t.Errorf("a process with workers ended: %v", err)
	}
}
