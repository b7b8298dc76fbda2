package asynqjobs

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/jobs"
)

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
	// sweepEach is how often the lines with parked tasks are swept.
	sweepEach = time.Second
)

// lines are the unfinished tasks of a Mutex's keys, in the order of their places, as
// enter.lua has them in Redis.
type lines struct {
	redis   redis.UniversalClient
	mutex   *jobs.Mutex
	options jobs.Options
}

func openLines(r asynq.RedisConnOpt, m *jobs.Mutex) (*lines, error) {
	if m == nil {
		return nil, fmt.Errorf("asynqjobs: there is no jobs.Mutex; make one with jobs.New")
	}
	if r != nil {
		if c, ok := r.MakeRedisClient().(redis.UniversalClient); ok {
			return &lines{redis: c, mutex: m, options: m.Options()}, nil
		}
	}
	return nil, fmt.Errorf("asynqjobs: a %T makes no Redis client; give what asynq.NewServer is given", r)
}

// kept reports whether tasks are in lines. With the policy Replace each task has to reach
// a worker: it is done there if a newer one has.
func (l *lines) kept() bool {
	p := l.options.Policy
	return !l.options.Unordered && (p == jobs.ComeBack || p == jobs.Wait)
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

// note runs enter.lua.
func (l *lines) note(ctx context.Context, what, queue, key, id string) (bool, error) {
	digest := l.mutex.Digest(key)
	limits := fmt.Sprint(l.options.Ahead, " ", l.options.Permits)
	return enterScript.Run(ctx, l.redis, names(queue, digest, "dibs:sequence"), what, id, digest, limits, lineLasts).Bool()
}

// leave takes a task that is over out of its line, and makes the next ones runnable.
func (l *lines) leave(ctx context.Context, queue, key, id string) error {
	return l.promote(ctx, queue, l.mutex.Digest(key), id, l.options.Ahead, l.options.Permits)
}

// promote runs promote.lua.
func (l *lines) promote(ctx context.Context, queue, digest, over string, ahead, permits any) error {
	return promoteScript.Run(ctx, l.redis, names(queue, digest, "scheduled", "retry", "pending"),
		over, digest, ahead, permits, prefix(queue)+"t:", parkedMark, lineLasts).Err()
}

// sweep makes tasks runnable that are still parked after a crash or a race. One Worker at a
// time does that for a queue, for the lines of all Mutexes.
func (l *lines) sweep(ctx context.Context) error {
	queues, err := l.redis.SMembers(ctx, "asynq:queues").Result()
	for _, queue := range queues {
		p := prefix(queue) + "dibs:"
		mine, err := l.redis.SetNX(ctx, p+"sweep", "", sweepEach*9/10).Result()
		if err != nil {
			return err
		}
		if !mine {
			continue
		}
		all, err := l.redis.HGetAll(ctx, p+"lines").Result()
		if err != nil {
			return err
		}
		for digest, limits := range all {
			ahead, permits, _ := strings.Cut(limits, " ")
			if err := l.promote(ctx, queue, digest, "", ahead, permits); err != nil {
				return err
			}
		}
	}
	return err
}
