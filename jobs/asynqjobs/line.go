package asynqjobs

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/jobs"
)

// A key's line is the list of its unfinished tasks in one queue, in the order of their places.

//go:embed enter.lua
var enterText string

//go:embed promote.lua
var promoteText string

var enterScript, promoteScript = redis.NewScript(enterText), redis.NewScript(promoteText)

const (
	// lineLasts is the expiry of an unused line, in seconds.
	lineLasts = 7 * 24 * 3600
	// leaveLimit bounds the time to take a task out of its line.
	leaveLimit = 2 * time.Second
	// sweepEach is the pause between sweeps of the lines with parked tasks.
	sweepEach = time.Second
)

// lines reports whether tasks have entries in lines. With Replace and CancelRunning each task must reach a
// worker, which ends it if a newer one has come.
func (m *Mutex) lines() bool {
	o := &m.options.Jobs
	return !o.Unordered && (o.Policy == jobs.Requeue || o.Policy == jobs.Wait)
}

// prefix begins Asynq's names in Redis, since Asynq 0.18.
func prefix(queue string) string { return "asynq:{" + queue + "}:" }

func names(queue, digest string, others ...string) []string {
	all := append([]string{"dibs:line:" + digest, "dibs:after:" + digest, "dibs:parked:" + digest, "dibs:lines"}, others...)
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

// enter runs enter.lua. before is the result of number before the place was reserved. mark is
// the mark of the task if it is parked; Asynq's message of the task must have it, too.
func (m *Mutex) enter(ctx context.Context, queue, key, id, before, mark string) (string, error) {
	digest := m.dibs.Key(key).Digest()
	return enterScript.Run(ctx, m.redis, names(queue, digest, "dibs:sequence"),
		id, digest, before, m.options.Jobs.Ahead, m.options.Jobs.Permits, lineLasts, mark).Text()
}

// newMark returns a text that is in no message. A mark that is stored in a field of this
// package and found in Asynq's message proves that this package wrote both.
func newMark() string { return rand.Text() }

// leave takes a finished task out of its line, and makes the next ones pending. If it
// fails, the sweep does it.
func (m *Mutex) leave(ctx context.Context, queue, key, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	m.log(m.promote(ctx, queue, m.dibs.Key(key).Digest(), id, m.options.Jobs.Ahead, m.options.Jobs.Permits))
}

// promote runs promote.lua.
func (m *Mutex) promote(ctx context.Context, queue, digest, over string, ahead, permits any) error {
	return promoteScript.Run(ctx, m.redis, names(queue, digest, "scheduled", "retry", "pending"),
		over, digest, ahead, permits, prefix(queue)+"t:", lineLasts).Err()
}

// sweep makes tasks pending that a crash or a race has left parked. For each queue, one
// process at a time does this, for all Mutexes.
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
