package asynqjobs

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// parkedFor is how long a parked task waits if nothing makes it pending earlier; up to
// twice as long.
const parkedFor = 10 * time.Minute

// EnqueueContext reserves the task's place and enqueues it. Tasks of a key run in the
// order of these calls; concurrent calls may come in any order. Asynq shows a parked task
// as scheduled. A task with ProcessIn or ProcessAt gets its place when it reaches a
// worker. A task of a Group gets none.
//
// Asynq shows a MaxRetry of one more than set; see GetMaxRetry.
//
// The errors are those of asynq.Client.EnqueueContext, jobs.Mutex.Enqueue and Redis.
// After an error the place is given back, unless Redis may have the task.
func (m *Mutex) EnqueueContext(ctx context.Context, task *Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if task == nil {
		return nil, errors.New("asynqjobs: the task is nil")
	}
	opts = append(task.Options[:len(task.Options):len(task.Options)], opts...)
	if task.Key == "" {
		return m.asynq.EnqueueContext(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.ownHeaders()), opts...)
	}
	if err := (dibs.Key{Name: task.Key}).Validate(); err != nil {
		return nil, err
	}
	w := settingsOf(opts, time.Now())
	w.id = cmp.Or(w.id, crand.Text())
	opts = append(opts, asynq.MaxRetry(w.maxRetry+spare), asynq.TaskID(w.id))
	if w.later {
		return m.enqueue(ctx, task, w, opts)
	}
	// enter.lua needs the last number before the place is reserved.
	before := ""
	if m.lines() {
		var err error
		if before, err = m.number(ctx, w.queue); err != nil {
			return nil, err
		}
	}
	return m.place(ctx, task, w, before, opts)
}

// place reserves the task's place and enqueues it.
func (m *Mutex) place(ctx context.Context, task *Task, w settings, before string, opts []asynq.Option) (info *asynq.TaskInfo, err error) {
	if w.ticket, err = m.jobs.Enqueue(ctx, jobs.Job{Kind: task.Type, ID: jobID(w.queue, w.id), Key: task.Key}); err != nil {
		return nil, err
	}
	entry := ""
	if w.ticket != "" && m.lines() {
		w.mark = newMark()
		if entry, err = m.enter(ctx, w.queue, task.Key, w.id, before, w.mark); entry != "parked" {
			w.mark = ""
		}
	}
	if entry == "parked" {
		away := parkedFor + rand.N(parkedFor)
		if limit := m.options.Jobs.Limit; limit > 0 {
			away = min(away, limit)
		}
		opts = append(opts, asynq.ProcessIn(away))
	}
	if err == nil {
		info, err = m.enqueue(ctx, task, w, opts)
	}
	if err != nil && (entry != "parked" || errors.Is(err, asynq.ErrTaskIDConflict) || !m.mayExist(ctx, w)) {
		m.jobs.Cancel(ctx, w.ticket)
		if entry != "there" {
			m.leave(ctx, w.queue, task.Key, w.id)
		}
	}
	return info, err
}

// mayExist reports whether Redis may have the task although its enqueue failed. If such a
// task is parked without an entry in its line, it runs only after parkedFor.
func (m *Mutex) mayExist(ctx context.Context, w settings) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	n, err := m.redis.Exists(ctx, prefix(w.queue)+"t:"+w.id).Result()
	return err != nil || n > 0
}

func (m *Mutex) enqueue(ctx context.Context, task *Task, w settings, opts []asynq.Option) (*asynq.TaskInfo, error) {
	return m.asynq.EnqueueContext(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.headers(w)), opts...)
}
