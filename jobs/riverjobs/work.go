package riverjobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// storeRetry is about the time until a job is tried again whose key could not be claimed
// because of the store.
const storeRetry = time.Second

type mutexKey struct{}

// Work implements rivertype.WorkerMiddleware. It works the job when its turn has come,
// and snoozes it if it cannot wait. The job's timeout counts from when it runs. After the
// job, the next jobs of its key become runnable in the background. Besides the worker's
// errors it returns those of jobs.Mutex.Run.
func (m *Mutex) Work(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	find, mine := m.find(row.Kind)
	if mine || ctx.Value(mutexKey{}) == nil { // for Commit; another Mutex may have the kind
		ctx = context.WithValue(ctx, mutexKey{}, m)
	}
	if !mine {
		return doInner(ctx)
	}
	d := &delivery{mutex: m, ctx: ctx, row: row, metadata: readMetadata(row.Metadata)}
	d.note = d.metadata.Dibs
	var err error
	if d.note.Key == "" {
		if d.note.Key, err = find(nil, row.EncodedArgs); err != nil {
			return fmt.Errorf("riverjobs: the key of a job of kind %q: %w", row.Kind, err)
		}
	}
	back := false
	err = errors.New("riverjobs: the job panicked, or called runtime.Goexit") // if the worker does not return
	defer func() {
		// A ticket may be from a version with another policy, which parked other jobs.
		if !back && d.note.Key != "" && (m.queues || d.note.Ticket != "") {
			m.promoteSoon(d.note.Key, d.after(err))
		}
	}()
	ran := false
	err = m.jobs.Run(ctx, d.job(), func(ctx context.Context) error {
		ran = true
		if d.metadata.Parked {
			d.set(parkedKey, false) // the worker may snooze the job itself
		}
		return doInner(ctx)
	})
	if err != nil && !ran {
		err, back = d.waited(err)
	}
	if err != nil && !back && !m.options.Jobs.Policy.Replaces() && (d.last(err) || ran && !m.keeps) {
		d.set(noteKey, note{Key: d.note.Key}) // its place ended, so a later run needs a new one
	}
	return err
}

// delivery is a job that River gave to a worker.
type delivery struct {
	mutex    *Mutex
	ctx      context.Context // River's, with the Mutex
	row      *rivertype.JobRow
	metadata metadata
	note     note // the new one
}

// after returns the ID up to which the key's jobs are finished, when the job ended with
// that error.
func (d *delivery) after(err error) int64 {
	if err != nil && d.mutex.keeps && !d.last(err) {
		return d.row.ID - 1
	}
	return d.row.ID
}

// waited returns the result of a job that did not run, and whether it comes back.
func (d *delivery) waited(err error) (result error, back bool) {
	if c, ok := errors.AsType[*jobs.RequeueError](err); ok {
		if c.Parked || d.metadata.Parked {
			d.set(parkedKey, c.Parked)
		}
		if n := &d.note; d.mutex.options.Jobs.Limit > 0 && (n.Try != d.row.Attempt || n.Due.IsZero()) {
			n.Due, n.Try = d.row.ScheduledAt, d.row.Attempt
		}
		if d.note != d.metadata.Dibs {
			d.set(noteKey, d.note)
		}
		return river.JobSnooze(c.After), true
	}
	switch {
	case d.cancelled():
		return err, false
	case d.ctx.Err() != nil:
		return river.JobSnooze(0), true // River's client stops; a snooze uses no try
	case errors.Is(err, dibs.ErrStore), errors.Is(err, dibs.ErrBusy), errors.Is(err, dibs.ErrFull), errors.Is(err, dibs.ErrClosed):
		// The job has not failed, and keeps its place.
		return river.JobSnooze(storeRetry/2 + rand.N(storeRetry)), true
	}
	return err, false
}

// set sets a name in the metadata; River stores it with the job's result.
func (d *delivery) set(name string, value any) {
	_ = river.MetadataSet(d.ctx, name, value) // it fails only outside a worker
}

// job describes the job. Its ID contains the time of creation, because a truncated table
// begins its numbers anew.
func (d *delivery) job() jobs.Job {
	row := d.row
	j := jobs.Job{
		Kind: row.Kind, ID: strconv.FormatInt(row.ID, 10) + "@" + strconv.FormatInt(row.CreatedAt.UnixMicro(), 36),
		Key: d.note.Key, Ticket: d.note.Ticket, Due: row.ScheduledAt, Tries: row.Attempt + d.metadata.Snoozes,
		Final: d.last, RetryIn: d.again, Patience: d.mutex.options.Patience,
		Pool: jobs.Pool{Name: row.Queue, Workers: d.mutex.workers[row.Queue]}, Promoted: d.mutex.queues && d.note.Ticket != "",
	}
	if d.note.Try == row.Attempt && !d.note.Due.IsZero() {
		j.Due = d.note.Due
	}
	return j
}

// cancelled reports whether the job was cancelled while a worker had it.
func (d *delivery) cancelled() bool {
	return errors.Is(context.Cause(d.ctx), rivertype.ErrJobCancelledRemotely)
}

// stopped reports whether the end of River's client stopped the job, so that it comes
// again without having used a try.
func (d *delivery) stopped(err error) bool {
	cause := context.Cause(d.ctx)
	return cause != nil && !d.cancelled() && (errors.Is(err, context.Canceled) || errors.Is(err, cause))
}

// last reports whether River will not try the job again after that error.
func (d *delivery) last(err error) bool {
	if _, ok := errors.AsType[*rivertype.JobSnoozeError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*rivertype.JobCancelError](err); ok || d.cancelled() {
		return true
	}
	return !d.stopped(err) && d.row.Attempt >= d.row.MaxAttempts
}

// again returns the time until River tries the job again after that error.
func (d *delivery) again(err error) time.Duration {
	if snooze, ok := errors.AsType[*rivertype.JobSnoozeError](err); ok {
		return snooze.Duration
	}
	if d.stopped(err) {
		return 0
	}
	return time.Until(d.mutex.retries.NextRetry(d.row))
}
