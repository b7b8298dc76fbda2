package asynqjobs

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/jobs"
)

// Errors that say how the server or the handler is to be set up.
var (
	errNoServer = errors.New("asynqjobs: the handler was not called by an Asynq server")
	errNoConfig = errors.New("asynqjobs: the server would count a task that only waits as failed; make it with asynq.NewServer(redis, asynqjobs.Config(config))")
)

// refusal is the error with which a task is archived that came back although its last
// attempt was over.
const refusal = "dibs: its last attempt had ended when it panicked, ran out of time, was cancelled or its worker died"

// patient is the part of its time that a task may wait in the worker: its Timeout is
// for what it does.
const patient = 4

// unsure is by how much the second answer of a RetryDelayFunc may exceed the first: that
// of Asynq is random.
const unsure = 5

// attempt is a task that a worker has.
type attempt struct {
	worker    *Worker
	ctx       context.Context
	task      *asynq.Task
	queue, id string
	server    *server

	retried  int
	maxRetry int  // as it was asked for
	limit    int  // as Asynq has it
	began    bool // the handler
	returned bool // the handler has

	pause  time.Duration // until it is tried again
	paused bool          // it is known
}

func (w *Worker) attempt(ctx context.Context, t *asynq.Task) (*attempt, error) {
	a := &attempt{worker: w, ctx: ctx, task: t}
	var ok [4]bool
	a.id, ok[0] = asynq.GetTaskID(ctx)
	a.queue, ok[1] = asynq.GetQueueName(ctx)
	a.retried, ok[2] = asynq.GetRetryCount(ctx)
	a.limit, ok[3] = asynq.GetMaxRetry(ctx)
	if ok != [4]bool{true, true, true, true} {
		return nil, errNoServer
	}
	if a.server, ok[0] = ctx.Value(serverKey{}).(*server); !ok[0] {
		return nil, errNoConfig
	}
	if a.maxRetry, ok[0] = maxRetryOf(t); !ok[0] {
		a.maxRetry = a.limit
	}
	return a, nil
}

// spared reports whether the task has no attempts left and is there all the same,
// because Asynq knows of a spare one.
func (a *attempt) spared() bool { return a.retried > a.maxRetry }

// refuse has a task archived that has no attempts left, as Asynq would have done
// earlier, unless somebody has made it run again since.
func (a *attempt) refuse() error {
	message, err := a.worker.redis.HGet(a.ctx, taskName(a.queue, a.id), "msg").Result()
	if err == nil && strings.Contains(message, refusal) {
		return nil
	}
	a.worker.mutex.Cancel(a.ctx, a.task.Headers()[headerTicket])
	return errors.New(refusal)
}

// run runs the task in its turn.
func (a *attempt) run(key string, next asynq.Handler) error {
	mark := "dibs-" + crand.Text()
	err := a.worker.mutex.Run(withMaxRetry(a.ctx, a.task), a.job(key, mark), func(ctx context.Context) error {
		a.began = true
		err := next.ProcessTask(ctx, a.task)
		a.returned = true
		return err
	})
	switch back, ok := errors.AsType[*jobs.ComeBackError](err); {
	case err == nil:
		return nil
	case ok:
		return &putOffError{back: back, mark: mark}
	case !a.began && a.retried < a.limit && a.ctx.Err() == nil && away(err):
		// The place stands. Who has no attempt left, not even a spare one, is archived
		// when it is put off.
		return &putOffError{back: &jobs.ComeBackError{After: storeAway/2 + rand.N(storeAway)}, mark: mark, why: err}
	case a.spared():
		return fmt.Errorf("%w (%s)", err, refusal) // for who makes it run again
	default:
		return &failure{error: err, delay: a.pause, known: a.paused, last: a.retried >= a.maxRetry}
	}
}

// job says what a Mutex has to know of the task.
func (a *attempt) job(key, mark string) jobs.Job {
	var patience time.Duration
	if end, ok := a.ctx.Deadline(); ok {
		patience = max(time.Until(end)/patient, time.Millisecond)
	}
	return jobs.Job{
		Kind: a.task.Type(), ID: a.queue + ":" + a.id,
		Key: key, Ticket: a.task.Headers()[headerTicket],
		Due: dueOf(a.task), Tries: a.retried + 1,
		Last: a.last, Again: a.again,
		// Asynq archives a task on its last attempt, also one that is put off.
		Stays:    a.retried >= a.limit,
		Patience: patience,
		Pool:     a.server.pool,
		Wake: func(ctx context.Context) (bool, error) {
			return a.worker.wake(ctx, a.queue, a.id, mark)
		},
	}
}

// last reports whether the task is not seen again after that error.
func (a *attempt) last(err error) bool {
	switch {
	case errors.Is(err, asynq.SkipRetry), errors.Is(err, asynq.RevokeTask):
		return true
	case a.limit > a.maxRetry && a.ctx.Err() != nil:
		// The server is shut down and the task is pending again, or it comes back to
		// be refused.
		return false
	}
	return a.retried >= a.maxRetry
}

// again returns when the task is tried again after that error.
func (a *attempt) again(err error) time.Duration {
	d := a.server.delay(a.retried, err, a.task)
	if !a.returned || a.ctx.Err() != nil {
		// Asynq asks again, and waits for that answer.
		return unsure * d
	}
	a.pause, a.paused = d, true
	return d
}
