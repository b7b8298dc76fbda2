package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
)

// Locker lets one host run each tick of a job. It implements gocron.Locker, for
// gocron.WithDistributedLocker and gocron.WithDistributedJobLocker. It is safe for
// concurrent use.
//
// The key is the job's name in the client's namespace. Name the jobs with gocron.WithName,
// because gocron's default is the name of the function, and two functions without a name
// can have the same one.
type Locker struct {
	client *dibs.Client
	per    time.Duration
	leases sync.Map // of the running jobs, by name
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker that refuses a job for the time per, counted from the moment
// when its last run began on any host. So per must be longer than the clocks of two hosts
// can differ, and shorter than the time between two ticks. Jobs with other intervals can
// have their own Locker. All hosts must have the same per. At least 1 ms.
//
// A store on etcd or in a bucket needs an Elector instead: its time stands while no process uses
// it, so a Locker would refuse ticks.
func NewLocker(c *dibs.Client, per time.Duration) (*Locker, error) {
	switch {
	case c == nil:
		return nil, errors.New("gocronlock: the client given to NewLocker is nil")
	case per < time.Millisecond:
		return nil, fmt.Errorf("gocronlock: per is %v; it must be at least 1 ms, and should be a little shorter than the time between two ticks", per)
	}
	return &Locker{client: c, per: per}, nil
}

// Lock takes the job's key, without waiting. gocron calls it at each tick. It returns
// dibs.ErrHeld while the job runs, dibs.ErrDone if a run began less than per ago, or
// another error of dibs.Client.Acquire. After an error gocron does not run the job at this
// tick, and calls the job's AfterLockError.
func (l *Locker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	lease, err := l.client.TryAcquire(ctx, name, &dibs.AcquireOptions{
		MaxAge: l.per, Label: "gocron",
		Detach: true, // gocron ends ctx while the job still runs
	})
	if err != nil {
		return nil, err
	}
	l.leases.Store(name, lease)
	return &lock{locker: l, name: name, lease: lease, began: time.Now()}, nil
}

// Lease returns the lease of a job that runs in this process, or nil. The job needs it for
// its Fence, and for its Context, which ends with cause dibs.ErrLost when the key is lost.
// The context that gocron gives to the job does not end then.
func (l *Locker) Lease(name string) *dibs.Lease {
	lease, _ := l.leases.Load(name)
	held, _ := lease.(*dibs.Lease)
	return held
}

// lock is the lock of one run.
type lock struct {
	locker *Locker
	name   string
	lease  *dibs.Lease
	began  time.Time
}

// retryEvery is the pause after a call that failed for a reason that may pass.
const retryEvery = time.Second

// Unlock ends the lease, and leaves a record for the rest of per. The record is the same
// after a failure, because gocron does not say whether the job failed. While the store does
// not answer, Unlock tries again until per is over or the lease is lost.
func (l *lock) Unlock(ctx context.Context) error {
	defer l.locker.leases.CompareAndDelete(l.name, l.lease)
	ctx = context.WithoutCancel(ctx) // gocron has ended it if the scheduler stops
	for {
		left := l.locker.per - time.Since(l.began)
		if left < time.Millisecond {
			return l.lease.Release()
		}
		err := l.lease.Complete(ctx, nil, left)
		if !errors.Is(err, dibs.ErrStore) && !errors.Is(err, dibs.ErrBusy) {
			return errors.Join(err, l.lease.Release())
		}
		_ = backoff.Sleep(ctx, min(retryEvery, left))
	}
}
