package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/jobs"
)

// Errors of a wrong set-up.
var (
	errNoServer = errors.New("asynqjobs: the handler was not called by an Asynq server")
	errNoConfig = errors.New("asynqjobs: the server would count a waiting task as failed; use asynq.NewServer(redis, asynqjobs.Config(config))")
)

// refusal is the error that archives a task which came back after its last try. A mark
// follows.
const refusal = "dibs: its last try had ended when it panicked, ran out of time, was cancelled or its worker died"

// fieldRefused is this package's field in Asynq's hash of a task: the mark of its last refusal.
const fieldRefused = "dibs:refused"

const (
	// A task may wait in the worker for 1/waitShare of its time, because its Timeout is
	// for its work.
	waitShare = 4
	// delayFactor is how much longer a later answer of RetryDelayFunc may be, because
	// Asynq's is random.
	delayFactor = 5
	// requeueFor is about the time until a task comes back whose key could not be claimed,
	// or that has no entry in its line.
	requeueFor = time.Second
)

// attempt is a task that a worker has.
type attempt struct {
	mutex  *Mutex
	ctx    context.Context
	task   *asynq.Task
	server *server

	queue, id, key, ticket string
	inLine                 bool // it was enqueued with an entry in its line

	retried  int
	maxRetry int  // as the caller set it
	limit    int  // as Asynq has it: maxRetry + spare
	began    bool // the handler has begun
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

// isSpare reports whether this is the spare try, which only Asynq knows.
func (a *attempt) isSpare() bool { return a.retried > a.maxRetry }

// refuse archives a task that has no tries left, unless an operator has made it run
// again: its message then has the mark of its refusal.
func (a *attempt) refuse() error {
	values, err := a.mutex.redis.HMGet(a.ctx, a.hash(), fieldRefused, "msg").Result()
	if err == nil {
		mark, _ := values[0].(string)
		message, _ := values[1].(string)
		if mark != "" && strings.Contains(message, mark) {
			return nil
		}
	}
	a.mutex.jobs.Cancel(a.ctx, a.ticket)
	a.leave()
	return a.refused()
}

// refused returns the error that archives the task, with a new mark. If the mark is not
// stored, the task is refused once more when an operator makes it run again.
func (a *attempt) refused() error {
	mark := newMark()
	a.mutex.log(a.mutex.redis.HSet(context.WithoutCancel(a.ctx), a.hash(), fieldRefused, mark).Err())
	return fmt.Errorf("%s (%s)", refusal, mark)
}

// hash is the name of Asynq's hash of the task.
func (a *attempt) hash() string { return prefix(a.queue) + "t:" + a.id }

// run runs the task in its turn.
func (a *attempt) run(next asynq.Handler) error {
	over := a.mutex.options.Jobs.Failed == jobs.LetPass // even when it panics
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
		return a.requeue(back)
	case !a.began && a.retried < a.limit && a.ctx.Err() == nil && storeFailed(err):
		// The task keeps its place. Without a spare try Asynq would archive it.
		over = false
		return &requeueError{&jobs.RequeueError{After: requeueFor/2 + rand.N(requeueFor)}, ": its key could not be claimed:  " + err.Error()}
	case a.isSpare():
		over = true
		return fmt.Errorf("%w (%w)", err, a.refused())
	}
	over = over || a.last(err)
	if a.retried >= a.maxRetry {
		return &lastError{err}
	}
	return err
}

// jobID returns the ID of a task's Job, which is unique whatever characters its parts have.
func jobID(queue, id string) string { return url.QueryEscape(queue) + ":" + id }

// job describes the task.
func (a *attempt) job() jobs.Job {
	j := jobs.Job{
		Kind: a.task.Type(), ID: jobID(a.queue, a.id), Key: a.key, Ticket: a.ticket,
		Tries: a.retried + 1, Final: a.last, RetryIn: a.again,
		// On its last try Asynq would archive a requeued task.
		NoRequeue: a.retried >= a.limit,
		Pool:      a.server.pool, Promoted: a.inLine,
	}
	if end, ok := a.ctx.Deadline(); ok {
		j.Patience = max(time.Until(end)/waitShare, time.Millisecond)
	}
	if ms, err := strconv.ParseInt(a.task.Headers()[headerDue], 10, 64); err == nil {
		j.Due = time.UnixMilli(ms)
	}
	return j
}

// requeue brings the task back: a parked one when promote.lua makes it pending.
func (a *attempt) requeue(back *jobs.RequeueError) error {
	if !back.Parked {
		return &requeueError{back: back}
	}
	mark := newMark()
	switch there, err := a.mutex.enter(a.ctx, a.queue, a.key, a.id, "", mark); {
	case err != nil:
		a.mutex.log(err)
	case there == "none":
		// Its entry ended together with its place.
		return &requeueError{back: &jobs.RequeueError{After: requeueFor/2 + rand.N(requeueFor)}}
	case back.Ahead >= a.mutex.options.Jobs.Ahead && a.mutex.options.Jobs.Limit == 0:
		back.After = parkedFor + rand.N(parkedFor)
	}
	return &requeueError{back, " (parked, " + mark + ")"}
}

// leave takes a finished task out of its line.
func (a *attempt) leave() {
	if a.inLine {
		a.mutex.leave(a.ctx, a.queue, a.key, a.id)
	}
}

// last reports whether the task will not come again after that error.
func (a *attempt) last(err error) bool {
	switch {
	case errors.Is(err, asynq.SkipRetry), errors.Is(err, asynq.RevokeTask):
		return true
	case a.limit > a.maxRetry && a.ctx.Err() != nil:
		// The server is stopping and the task is pending again, or it comes back and is
		// refused.
		return false
	}
	return a.retried >= a.maxRetry
}

// again returns an upper bound of the time until the next try after that error.
func (a *attempt) again(err error) time.Duration {
	return delayFactor * a.server.delay(a.retried, err, a.task)
}
