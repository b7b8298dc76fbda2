package jobs

import (
	"context"
	"encoding/hex"
	"errors"

	"github.com/dibs-go/dibs"
)

// onceKey is the name of the key whose record says that the job was done.
func (j *Job) onceKey() string {
	return "dibs job " + hex.EncodeToString(digest(j.Kind, j.ID))
}

// once runs fn, unless a record says that the job was done.
func (a *attempt) once(ctx context.Context, fn func(context.Context) error) error {
	m := a.mutex
	ctx = a.jobContext(ctx)
	if m.options.Once == 0 {
		return fn(ctx)
	}
	if a.job.ID == "" {
		return errors.New("jobs: Options.Once needs Job.ID, but the job has none")
	}
	ran := false
	var failed error // of the job, which may have the types of errors below
	work := func(ctx context.Context) (struct{}, error) {
		ran = true
		failed = fn(ctx)
		return struct{}{}, failed
	}
	o := &dibs.OnceOptions{Retention: m.options.Once, TTL: m.options.TTL, Label: a.job.label()}
	var err error
	if m.options.Transactor != nil {
		_, err = dibs.OnceIn(ctx, m.client, m.options.Transactor, a.job.onceKey(), o, work)
	} else {
		_, err = dibs.Once(ctx, m.client, a.job.onceKey(), o, work)
	}
	var keepErr *dibs.KeepError
	switch {
	case failed == nil && errors.As(err, &keepErr):
		// The job was done, so it must not be tried again.
		m.options.Logger.WarnContext(ctx, "dibs: a job was done, but its record was not stored, so a second delivery would run it again",
			"kind", a.job.Kind, "job", a.job.ID, "error", keepErr)
		return nil
	case !ran && err == nil:
		m.report(ctx, a, EventRemembered, nil)
		return nil
	}
	return err
}

// skip runs fn unless another job holds the key. If only places keep it from the key, the
// job is requeued.
func (a *attempt) skip(ctx context.Context, fn func(context.Context) error) error {
	o := a.acquire()
	for {
		lease, err := a.mutex.client.TryAcquire(ctx, a.job.Key, &o)
		switch {
		case err == nil:
			return a.run(lease, fn)
		case !errors.Is(err, dibs.ErrHeld):
			return a.refused(ctx, err)
		case !isFree(err):
			a.mutex.report(ctx, a, EventSkipped, nil)
			return nil
		}
		if err := a.later(ctx); err != nil {
			return a.refused(ctx, err)
		}
	}
}
