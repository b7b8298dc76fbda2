package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
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

const (
	// patient is the part of its time that a task may wait in the worker: its Timeout is
	// for what it does.
	patient = 4
	// unsure is by how much the delay of a retry may exceed what was answered earlier:
	// Asynq's is random.
	unsure = 5
	// awayFor is about how long a task stays away whose key could not be asked for, or that
	// has no entry in its line.
	awayFor = time.Second
)

// attempt is a task that a worker has.
type attempt struct {
	mutex  *Mutex
	ctx    context.Context
	task   *asynq.Task
	server *server

	queue, id, key, ticket string
	inLine                 bool // it has an entry, unless it lost that with its place

	retried  int
	maxRetry int  // as it was asked for
	limit    int  // as Asynq has it
	began    bool // the handler
}

func (m *Mutex) attempt(ctx context.Context, t *asynq.Task, key string) (*attempt, error) {
	a := &attempt{mutex: m, ctx: ctx, task: t, key: key, ticket: t.Headers()[headerTicket]}
	a.inLine = a.ticket != "" && m.lines()
	var ok bool
	if a.id, ok = asynq.GetTaskID(ctx); !ok {
		return nil, errNoServer
	}
	a.queue, _ = asynq.GetQueueName(ctx)
	a.retried, _ = asynq.GetRetryCount(ctx)
	a.limit, _ = asynq.GetMaxRetry(ctx)
	if a.server, ok = ctx.Value(serverKey{}).(*server); !ok {
		return nil, errNoConfig
	}
	if a.maxRetry, ok = maxRetryOf(t); !ok {
		a.maxRetry = a.limit
	}
	return a, nil
}

// spared reports whether the task has no attempts left and is there all the same, because
// Asynq knows of a spare one.
func (a *attempt) spared() bool { return a.retried > a.maxRetry }

// refuse has a task archived that has no attempts left, as Asynq would have done earlier,
// unless it was made to run by hand since.
func (a *attempt) refuse() error {
	message, err := a.mutex.redis.HGet(a.ctx, prefix(a.queue)+"t:"+a.id, "msg").Result()
	if err == nil && strings.Contains(message, refusal) {
		return nil
	}
	a.mutex.jobs.Cancel(a.ctx, a.ticket)
	a.leave()
	return errors.New(refusal)
}

// run runs the task in its turn.
func (a *attempt) run(next asynq.Handler) error {
	over := a.mutex.options.Jobs.Failed == jobs.LetPass // also when it panics
	defer func() {
		if over {
			a.leave()
		}
	}()
	err := a.mutex.jobs.Run(withMaxRetry(a.ctx, a.task), a.job(), func(ctx context.Context) error {
		a.began = true
		return next.ProcessTask(ctx, a.task)
	})
	back, ok := errors.AsType[*jobs.RequeueError](err)
	switch {
	case err == nil:
		over = true
		return nil
	case ok:
		over = false
		return a.putOff(back)
	case !a.began && a.retried < a.limit && a.ctx.Err() == nil && away(err):
		// The place stands. A task without a spare attempt would be archived.
		over = false
		return &putOffError{&jobs.RequeueError{After: awayFor/2 + rand.N(awayFor)}, ": its key could not be asked for: " + err.Error()}
	case a.spared():
		over = true
		return fmt.Errorf("%w (%s)", err, refusal) // so that refuse lets it pass
	}
	over = over || a.last(err)
	if a.retried >= a.maxRetry {
		return &lastError{err}
	}
	return err
}

// job says what a Mutex has to know of the task.
func (a *attempt) job() jobs.Job {
	j := jobs.Job{
		Kind: a.task.Type(), ID: a.queue + ":" + a.id, Key: a.key, Ticket: a.ticket,
		Tries: a.retried + 1, Final: a.last, RetryIn: a.again,
		// Asynq archives a task on its last attempt, also one that is put off.
		NoRequeue: a.retried >= a.limit,
		Pool:      a.server.pool, Promoted: a.inLine,
	}
	if end, ok := a.ctx.Deadline(); ok {
		j.Patience = max(time.Until(end)/patient, time.Millisecond)
	}
	if ms, err := strconv.ParseInt(a.task.Headers()[headerDue], 10, 64); err == nil {
		j.Due = time.UnixMilli(ms)
	}
	return j
}

// putOff has the task come back: when promote.lua finds that it is next, if it is parked.
func (a *attempt) putOff(back *jobs.RequeueError) error {
	if !back.Parked {
		return &putOffError{back: back}
	}
	switch there, err := a.mutex.enter(a.ctx, a.queue, a.key, a.id, ""); {
	case err != nil:
		a.mutex.log(err)
	case there == "none":
		// It has lost its entry with its place.
		return &putOffError{back: &jobs.RequeueError{After: awayFor/2 + rand.N(awayFor)}}
	case back.Ahead >= a.mutex.options.Jobs.Ahead && a.mutex.options.Jobs.Limit == 0:
		back.After = parkedFor + rand.N(parkedFor)
	}
	return &putOffError{back, " (" + parkedMark + " " + a.id + ")"}
}

// leave takes the task, which is over, out of its line.
func (a *attempt) leave() {
	if a.inLine {
		a.mutex.leave(a.ctx, a.queue, a.key, a.id)
	}
}

// last reports whether the task is not seen again after that error.
func (a *attempt) last(err error) bool {
	switch {
	case errors.Is(err, asynq.SkipRetry), errors.Is(err, asynq.RevokeTask):
		return true
	case a.limit > a.maxRetry && a.ctx.Err() != nil:
		// The server is shut down and the task is pending again, or it comes back to be
		// refused.
		return false
	}
	return a.retried >= a.maxRetry
}

// again returns after how long it is tried again, at most, after that error.
func (a *attempt) again(err error) time.Duration {
	return unsure * a.server.delay(a.retried, err, a.task)
}
