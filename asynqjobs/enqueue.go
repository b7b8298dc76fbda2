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
)

// parkedFor is how long a parked task stays away, should nothing make it runnable; up to
// twice as long.
const parkedFor = 10 * time.Minute

// EnqueueContext takes the task's place and enqueues it. Tasks of a key run in the order
// of these calls, as far as one began after the other had returned. A task that is parked
// is scheduled, for Asynq. A task that is to run later (ProcessIn, ProcessAt) takes its
// place when it does, and one of a Group has none.
//
// Asynq says that the task's MaxRetry is one more than asked for; see GetMaxRetry.
//
// The errors are those of asynq.Client.EnqueueContext, jobs.Mutex.Enqueue and Redis.
// After an error the place is given back, unless Redis may have the task all the same.
func (m *Mutex) EnqueueContext(ctx context.Context, task *Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if task == nil {
		return nil, errors.New("asynqjobs: there is no task to enqueue: it is nil")
	}
	opts = append(task.Options[:len(task.Options):len(task.Options)], opts...)
	if task.Key == "" {
		return m.asynq.EnqueueContext(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.Headers), opts...)
	}
	if err := (dibs.Key{Name: task.Key}).Validate(); err != nil {
		return nil, err
	}
	w := wishOf(opts, time.Now())
	w.id = cmp.Or(w.id, crand.Text())
	opts = append(opts, asynq.MaxRetry(w.maxRetry+spare), asynq.TaskID(w.id))
	if w.later {
		return m.enqueue(ctx, task, w, opts)
	}
	// Before the place is taken: a task whose entry is late is not parked.
	before := ""
	if m.lines() {
		var err error
		if before, err = m.number(ctx, w.queue); err != nil {
			return nil, err
		}
	}
	return m.place(ctx, task, w, before, opts)
}

// place takes the task's place and enqueues it.
func (m *Mutex) place(ctx context.Context, task *Task, w wish, before string, opts []asynq.Option) (info *asynq.TaskInfo, err error) {
	if w.ticket, err = m.jobs.Enqueue(ctx, task.Key); err != nil {
		return nil, err
	}
	entry := ""
	if w.ticket != "" && m.lines() {
		entry, err = m.enter(ctx, w.queue, task.Key, w.id, before)
	}
	if entry == "parked" {
		w.parked = true
		away := parkedFor + rand.N(parkedFor)
		if limit := m.options.Jobs.Limit; limit > 0 {
			away = min(away, limit)
		}
		opts = append(opts, asynq.ProcessIn(away))
	}
	if err == nil {
		info, err = m.enqueue(ctx, task, w, opts)
	}
	if err != nil && (entry != "parked" || errors.Is(err, asynq.ErrTaskIDConflict) || !m.mayBeThere(ctx, w)) {
		m.jobs.Cancel(ctx, w.ticket)
		if entry != "there" {
			m.leave(ctx, w.queue, task.Key, w.id)
		}
	}
	return info, err
}

// mayBeThere reports whether Redis may have a task that was enqueued with an error. If such a
// task is parked and has no entry in its line, it comes only when parkedFor is over.
func (m *Mutex) mayBeThere(ctx context.Context, w wish) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
	defer cancel()
	n, err := m.redis.Exists(ctx, prefix(w.queue)+"t:"+w.id).Result()
	return err != nil || n > 0
}

func (m *Mutex) enqueue(ctx context.Context, task *Task, w wish, opts []asynq.Option) (*asynq.TaskInfo, error) {
	return m.asynq.EnqueueContext(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.headers(w)), opts...)
}
