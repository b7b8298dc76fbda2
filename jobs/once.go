package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/dibs-go/dibs"
)

// onceKey is the name of the key under which it is remembered that a job was done.
func (j *Job) onceKey() string {
	sum := sha256.Sum256([]byte(j.Kind + "\x00" + j.ID))
	return "dibs job " + hex.EncodeToString(sum[:])
}

// once runs fn, unless it is remembered that this job was done.
func (a *attempt) once(ctx context.Context, fn func(context.Context) error) error {
	m := a.mutex
	ctx = a.inside(ctx)
	if m.options.Once == 0 {
		return fn(ctx)
	}
	if a.job.ID == "" {
		return errors.New("jobs: Options.Once needs an ID to know the job again by, and it has none")
	}
	ran := false
	work := func(ctx context.Context) (struct{}, error) {
		ran = true
		return struct{}{}, fn(ctx)
	}
	o := &dibs.OnceOptions{Retention: m.options.Once, TTL: m.options.TTL, Label: a.acquire().Label}
	var err error
	if m.options.Transactor != nil {
		_, err = dibs.OnceIn(ctx, m.client, m.options.Transactor, a.job.onceKey(), o, work)
	} else {
		_, err = dibs.Once(ctx, m.client, a.job.onceKey(), o, work)
	}
	var unkept *dibs.KeepError
	switch {
	case errors.As(err, &unkept):
		// It was done, and to do it again is the last that is wanted.
		m.options.Logger.WarnContext(ctx, "dibs: a job was done, and it could not be remembered; a second delivery would do it again",
			"kind", a.job.Kind, "job", a.job.ID, "error", unkept)
		return nil
	case err == nil && !ran:
		m.tell(ctx, a, EventRemembered, nil)
	}
	return err
}

// skip runs fn unless another job holds the key. The place of another job makes it come back
// later.
func (a *attempt) skip(ctx context.Context, fn func(context.Context) error) error {
	o := a.acquire()
	o.NoWait, o.Hold = true, 0
	for {
		lease, err := a.mutex.client.Acquire(ctx, a.job.Key, o)
		switch {
		case err == nil:
			return a.run(lease, fn)
		case !errors.Is(err, dibs.ErrHeld):
			return a.refused(ctx, err)
		case !unheld(err):
			a.mutex.tell(ctx, a, EventSkipped, nil)
			return nil
		}
		if err := a.later(ctx); err != nil {
			return a.refused(ctx, err)
		}
	}
}

// periodic runs fn unless another job holds the key, or it was done a period ago or less.
// The place of another job makes it come back later.
func (a *attempt) periodic(ctx context.Context, fn func(context.Context) error) error {
	m := a.mutex
	o := &dibs.OnceOptions{Retention: m.options.Period, NoWait: true, TTL: m.options.TTL, Label: a.acquire().Label}
	ran := false
	once := func() error {
		_, err := dibs.Once(ctx, m.client, a.job.Key, o, func(ctx context.Context) (struct{}, error) {
			ran = true
			a.lease, _ = dibs.FromContext(ctx)
			defer a.begin(ctx)()
			return struct{}{}, fn(a.inside(ctx))
		})
		return err
	}
	err := once()
	for ; !ran && errors.Is(err, dibs.ErrHeld) && unheld(err); err = once() {
		if err := a.later(ctx); err != nil {
			return a.refused(ctx, err)
		}
	}
	var unkept *dibs.KeepError
	switch {
	case ran && errors.As(err, &unkept):
		m.options.Logger.WarnContext(ctx, "dibs: a job was done, and it could not be remembered; the next one of its key does it again",
			"kind", a.job.Kind, "job", a.job.ID, "key", a.place.Key.Digest(), "error", unkept)
		m.tell(ctx, a, EventSucceeded, nil)
		return nil
	case ran && err == nil:
		m.tell(ctx, a, EventSucceeded, nil)
	case ran && errors.Is(err, dibs.ErrLost):
		m.tell(ctx, a, EventLost, err)
	case ran:
		m.tell(ctx, a, EventFailed, err)
	case err == nil:
		m.tell(ctx, a, EventRemembered, nil)
	case errors.Is(err, dibs.ErrHeld):
		m.tell(ctx, a, EventSkipped, nil)
		return nil
	default:
		return a.refused(ctx, err)
	}
	return err
}
