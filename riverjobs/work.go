package riverjobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// storeAway is about how long a job stays away whose key could not be asked for.
const storeAway = time.Second

type mutexKey struct{}

// Work implements rivertype.WorkerMiddleware: it works the job when its turn has come,
// and snoozes it when that is not near. The job's timeout counts from when it runs.
// What it may return but for what the worker returns is said by jobs.Mutex.Run.
func (m *Mutex) Work(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	find, ok := m.keys[row.Kind]
	if !ok {
		return doInner(ctx)
	}
	n := readNote(row.Metadata)
	if n.Key == "" {
		var err error
		if n.Key, err = find(nil, row.EncodedArgs); err != nil {
			return fmt.Errorf("riverjobs: the key of a job of kind %q: %w", row.Kind, err)
		}
	}
	d := &delivery{mutex: m, ctx: ctx, row: row, note: n}
	if c, err := river.ClientFromContextSafely[pgx.Tx](ctx); err == nil {
		d.client = c
	}
	return d.run(doInner)
}

// delivery is a job that River has given to a worker.
type delivery struct {
	mutex  *Mutex
	client *river.Client[pgx.Tx] // nil with another driver
	ctx    context.Context       // River's
	row    *rivertype.JobRow
	note   note
	ran    bool
}

func (d *delivery) run(doInner func(context.Context) error) error {
	m := d.mutex
	err := m.jobs.Run(context.WithValue(d.ctx, mutexKey{}, m), d.job(), func(ctx context.Context) error {
		d.ran = true
		return doInner(ctx)
	})
	if err == nil || d.ran {
		return err
	}
	return d.waited(err)
}

// waited returns what is to become of a job that did not run.
func (d *delivery) waited(err error) error {
	if back, ok := errors.AsType[*jobs.ComeBackError](err); ok {
		d.remember()
		return river.JobSnooze(back.After)
	}
	switch {
	case d.cancelled():
		return err
	case d.ctx.Err() != nil:
		return river.JobSnooze(0) // River's client ends; a snooze gives the attempt back
	case errors.Is(err, dibs.ErrStore), errors.Is(err, dibs.ErrBusy), errors.Is(err, dibs.ErrFull), errors.Is(err, dibs.ErrClosed):
		// It did not fail: it could not be asked whether its turn has come. The place
		// stands.
		return river.JobSnooze(storeAway/2 + rand.N(storeAway))
	}
	return err
}

// job says what there is to know of the job.
func (d *delivery) job() jobs.Job {
	row := d.row
	j := jobs.Job{
		Kind: row.Kind, ID: id(row), Key: d.note.Key, Ticket: d.note.Ticket,
		Due: row.ScheduledAt, Tries: row.Attempt + int(snoozes(row)),
		Last: d.last, Again: d.again, Patience: d.mutex.options.Patience,
		Pool: jobs.Pool{Name: row.Queue, Workers: d.mutex.workers[row.Queue]},
	}
	if d.note.Try == row.Attempt && !d.note.Due.IsZero() {
		j.Due = d.note.Due
	}
	if d.client != nil {
		j.Wake = d.wake
	}
	return j
}

// id names a job, also among those of a table that was emptied and begins its numbers
// anew.
func id(row *rivertype.JobRow) string {
	return strconv.FormatInt(row.ID, 10) + "@" + strconv.FormatInt(row.CreatedAt.UnixMicro(), 36)
}

// cancelled reports whether somebody has cancelled the job while a worker had it.
func (d *delivery) cancelled() bool {
	return errors.Is(context.Cause(d.ctx), rivertype.ErrJobCancelledRemotely)
}

// stopped reports whether the job was cut off by the end of River's client, so that
// it comes again as if it had not been tried.
func (d *delivery) stopped(err error) bool {
	cause := context.Cause(d.ctx)
	return cause != nil && !d.cancelled() && (errors.Is(err, context.Canceled) || errors.Is(err, cause))
}

// last reports whether River does not try the job again after that error.
func (d *delivery) last(err error) bool {
	if _, ok := errors.AsType[*rivertype.JobSnoozeError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*rivertype.JobCancelError](err); ok || d.cancelled() {
		return true
	}
	return !d.stopped(err) && d.row.Attempt >= d.row.MaxAttempts
}

// again returns when River tries the job again after that error.
func (d *delivery) again(err error) time.Duration {
	if snooze, ok := errors.AsType[*rivertype.JobSnoozeError](err); ok {
		return snooze.Duration
	}
	if d.stopped(err) {
		return 0
	}
	return time.Until(d.mutex.options.RetryPolicy.NextRetry(d.row))
}
