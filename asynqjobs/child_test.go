package asynqjobs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/redisstore"
)

// planVar is the variable of the environment that makes the test binary a process with
// workers.
const planVar = "ASYNQJOBS_PLAN"

// plan is what such a process does.
type plan struct {
	Work        string // the name of its handler
	Redis       string // address of the queue
	DB          int
	Store       string // URL of the mutex's store
	Concurrency int
	TTL         time.Duration
	Hold        time.Duration
	Recovery    time.Duration
	Shutdown    time.Duration
	Once        time.Duration
	Hurried     bool // its jobs take no time
}

// works are the handlers of processes with workers: set up by what is given, and
// changing the options.
var works = map[string]func(*processWork) (asynq.HandlerFunc, error){
	"note": noteWork,
}

// stores open the stores of processes with workers, by how their URLs begin.
var stores = map[string]func(ctx context.Context, url string) (dibs.Store, error){
	"redis": func(ctx context.Context, url string) (dibs.Store, error) {
		s, err := redisstore.Open(ctx, url, nil)
		return &reaching{s}, err
	},
}

// reaching is a store that has points to be killed at.
type reaching struct{ *redisstore.Store }

func (r *reaching) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	failpoint.Reach("before the claim")
	err := r.Store.Claim(ctx, claims, answers)
	for _, a := range answers {
		if a.State == dibs.Granted {
			failpoint.Reach("after the grant")
		}
	}
	return err
}

func (r *reaching) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	failpoint.Reach("before the settlement")
	err := r.Store.Settle(ctx, settlements, errs)
	failpoint.Reach("after the settlement")
	return err
}

// processWork is what a handler is made from.
type processWork struct {
	plan    plan
	store   dibs.Store
	options *jobs.Options
}

// beChild works until its standard input ends, and then shuts down.
func beChild(text string, in io.Reader) error {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	ctx := context.Background()
	scheme, _, _ := strings.Cut(p.Store, ":")
	store, err := stores[scheme](ctx, p.Store)
	if err != nil {
		return err
	}
	client, err := dibs.New(store, &dibs.Options{TTL: p.TTL})
	if err != nil {
		return err
	}
	o := &jobs.Options{Hold: p.Hold, Recovery: p.Recovery, Once: p.Once, Logger: slog.New(slog.DiscardHandler)}
	handler, err := works[p.Work](&processWork{plan: p, store: store, options: o})
	if err != nil {
		return err
	}
	redis := asynq.RedisClientOpt{Addr: p.Redis, DB: p.DB}
	mutex, err := New(redis, client, &Options{Jobs: *o})
	if err != nil {
		return err
	}
	server := asynq.NewServer(redis, Config(asynq.Config{
		Concurrency:              p.Concurrency,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		ShutdownTimeout:          p.Shutdown,
		Logger:                   quiet{},
	}))
	turns := mutex.Middleware(handler)
	c := mutex.redis
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		if err := c.HIncrBy(ctx, "fetches", id, 1).Err(); err != nil {
			return err
		}
		return turns.ProcessTask(ctx, t)
	})); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	server.Stop()
	mutex.Stop()
	server.Shutdown()
	return errors.Join(mutex.Close(), client.Close())
}

// quiet is Asynq's logger where nobody reads.
type quiet struct{}

func (quiet) Debug(...any) {}
func (quiet) Info(...any)  {}
func (quiet) Warn(...any)  {}
func (quiet) Error(...any) {}
func (quiet) Fatal(a ...any) {
	fmt.Fprintln(os.Stderr, a...)
	os.Exit(1)
}

// child is a process with workers.
type child struct {
	*failpoint.Child
	pid int
	in  io.WriteCloser
}

// startChild returns when its workers work.
func startChild(t testing.TB, p plan) *child {
	t.Helper()
	c, out := launch(t, "", p)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("a process with workers says %q, %v", line, err)
	}
	return c
}

// launch starts a process with workers that stops at a point. What it says is in out.
func launch(t testing.TB, point string, p plan) (c *child, out io.Reader) {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), planVar+"="+string(text))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	c = &child{Child: failpoint.Start(t, point, cmd), in: in}
	c.pid = cmd.Process.Pid
	return c, out
}

// stop shuts it down and returns when it has ended.
func (c *child) stop(t testing.TB) {
	t.Helper()
	_ = c.in.Close()
	if err := c.Wait(); err != nil {
		t.Errorf("a process with workers ended: %v", err)
	}
}
