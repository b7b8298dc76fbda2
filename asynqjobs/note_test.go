package asynqjobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/internal/failpoint"
)

// noted is what a job leaves in Redis when it has run.
type noted struct {
	Key        string
	Number     int
	PID        int
	Begin, End time.Time
	Alone      bool // nobody else of its key ran when it began
}

// errand is the payload of a job that leaves a note: what it is called and how long it
// takes.
type errand struct {
	Key    string
	Number int
	Takes  time.Duration
	Fails  bool // once
}

func (e errand) task(opts ...asynq.Option) *Task {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return NewTask("errand", b, e.Key, opts...)
}

// noteWork is the handler that takes its time and leaves a note. It ends early with
// its context.
func noteWork(p *processWork) (asynq.HandlerFunc, error) {
	c := redis.NewClient(&redis.Options{Addr: p.plan.Redis, DB: p.plan.DB})
	return func(ctx context.Context, t *asynq.Task) error {
		var e errand
		if err := json.Unmarshal(t.Payload(), &e); err != nil {
			return err
		}
		n := noted{Key: e.Key, Number: e.Number, PID: os.Getpid(), Begin: time.Now()}
		inside, err := c.Incr(context.WithoutCancel(ctx), "inside "+e.Key).Result() // or nobody knows whether it counts
		if err != nil {
			return err
		}
		failpoint.Reach("in the handler")
		n.Alone = inside == 1
		if retried, _ := asynq.GetRetryCount(ctx); e.Fails && retried == 0 {
			return errors.Join(errors.New("it fails once"), c.Decr(context.WithoutCancel(ctx), "inside "+e.Key).Err())
		}
		if p.plan.Hurried {
			e.Takes = 0
		}
		timer := time.NewTimer(e.Takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // also when its time is over as well
			return fmt.Errorf("cut off: %w", c.Decr(context.WithoutCancel(ctx), "inside "+e.Key).Err())
		}
		n.End = time.Now()
		b, err := json.Marshal(n)
		if err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
		_, err = c.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.RPush(ctx, "notes", b)
			p.Decr(ctx, "inside "+e.Key)
			return nil
		})
		return err
	}, nil
}

// notes reads what jobs have left, in that order.
func notes(t testing.TB, r asynq.RedisClientOpt) []noted {
	t.Helper()
	c := r.MakeRedisClient().(redis.UniversalClient)
	defer c.Close()
	lines, err := c.LRange(t.Context(), "notes", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]noted, len(lines))
	if err := json.Unmarshal([]byte("["+strings.Join(lines, ",")+"]"), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// countNotes returns how many there are.
func countNotes(t testing.TB, r asynq.RedisClientOpt) int {
	t.Helper()
	c := r.MakeRedisClient().(redis.UniversalClient)
	defer c.Close()
	n, err := c.LLen(t.Context(), "notes").Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// inOrder fails the test unless the jobs of each key ran alone and in the order of
// their numbers, 1 to so many.
func inOrder(t testing.TB, all []noted, counts map[string]int) {
	t.Helper()
	next := map[string]int{}
	for _, n := range all {
		next[n.Key]++
		if n.Number != next[n.Key] || !n.Alone {
			t.Errorf("%s: number %d ran as the %d., alone: %v", n.Key, n.Number, next[n.Key], n.Alone)
		}
	}
	for key, want := range counts {
		if next[key] != want {
			t.Errorf("%s: %d jobs ran, want %d", key, next[key], want)
		}
	}
}
