package asynqjobs

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/jobs"
)

// A key's line is what Redis has of its unfinished tasks, in the order of their places.

//go:embed enter.lua
var enterText string

//go:embed promote.lua
var promoteText string

var enterScript, promoteScript = redis.NewScript(enterText), redis.NewScript(promoteText)

const (
	// parkedMark is a header of tasks that were parked when they were enqueued, and is in
	// the last error of those that a worker parked.
	parkedMark = "dibs-parked"
	// lineLasts is how many seconds a line lasts in which nothing happens: 7 days.
	lineLasts = 7 * 24 * 3600
	// leavePatience is how long a worker tries to take a task out of its line.
	leavePatience = 2 * time.Second
	// sweepEach is how often the lines with parked tasks are swept.
	sweepEach = time.Second
)

// lines reports whether tasks are in lines. With the policy Replace each task has to reach
// a worker: it is done there if a newer one has.
func (m *Mutex) lines() bool {
	o := &m.options.Jobs
	return !o.Unordered && (o.Policy == jobs.Requeue || o.Policy == jobs.Wait)
}

// prefix is how Asynq's names in Redis begin, since its version 0.18.
func prefix(queue string) string { return "asynq:{" + queue + "}:" }

func names(queue, digest string, others ...string) []string {
	all := append([]string{"dibs:line:" + digest, "dibs:after:" + digest, "dibs:lines"}, others...)
	for i := range all {
		all[i] = prefix(queue) + all[i]
	}
	return all
}

// number returns the last number of the queue's sequence, for enter.
func (m *Mutex) number(ctx context.Context, queue string) (string, error) {
	n, err := m.redis.Get(ctx, prefix(queue)+"dibs:sequence").Result()
	if errors.Is(err, redis.Nil) {
		return "0", nil
	}
	return n, err
}

// enter runs enter.lua; before is what number returned before the task had a place.
func (m *Mutex) enter(ctx context.Context, queue, key, id, before string) (string, error) {
	digest := m.dibs.Key(key).Digest()
	return enterScript.Run(ctx, m.redis, names(queue, digest, "dibs:sequence"),
		id, digest, before, m.options.Jobs.Ahead, m.options.Jobs.Permits, lineLasts).Text()
}

// leave takes a task that is over out of its line, and makes the next ones runnable. If it
// fails the sweep mends that.
func (m *Mutex) leave(ctx context.Context, queue, key, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
	defer cancel()
	m.log(m.promote(ctx, queue, m.dibs.Key(key).Digest(), id, m.options.Jobs.Ahead, m.options.Jobs.Permits))
}

// promote runs promote.lua.
func (m *Mutex) promote(ctx context.Context, queue, digest, over string, ahead, permits any) error {
	return promoteScript.Run(ctx, m.redis, names(queue, digest, "scheduled", "retry", "pending"),
		over, digest, ahead, permits, prefix(queue)+"t:", parkedMark, lineLasts).Err()
}

// sweep makes tasks runnable that are still parked after a crash or a race. One process at
// a time does that for a queue, for the lines of all Mutexes.
func (m *Mutex) sweep(ctx context.Context) error {
	queues, err := m.redis.SMembers(ctx, "asynq:queues").Result()
	for _, queue := range queues {
		p := prefix(queue) + "dibs:"
		var all map[string]string
		mine, failed := m.redis.SetNX(ctx, p+"sweep", "", sweepEach*9/10).Result()
		if mine {
			all, failed = m.redis.HGetAll(ctx, p+"lines").Result()
		}
		err = errors.Join(err, failed)
		for digest, limits := range all {
			ahead, permits, _ := strings.Cut(limits, " ")
			err = errors.Join(err, m.promote(ctx, queue, digest, "", ahead, permits))
		}
	}
	return err
}
