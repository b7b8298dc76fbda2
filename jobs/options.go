package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/dibs-go/dibs"
)

// Policy is what a job does whose key is held.
type Policy uint8

// What a job can do whose key is held, or which others come before.
const (
	// Requeue waits in the worker if fewer than half of them do (see Pool), and comes
	// back otherwise. The place stands meanwhile.
	Requeue Policy = iota
	// Wait waits in the worker, and comes back when that takes longer than
	// Options.Wait.
	Wait
	// Skip is done: another job does the same at this moment.
	Skip
	// Replace comes back like Requeue, and is done without having run when by then
	// a job of the same key that was enqueued later has reached a worker: the newest
	// one runs.
	Replace
	// Periodic is done when a job of the same key has run to its end in the last
	// Options.Period, and otherwise like Skip.
	Periodic
)

// Failed is what becomes of the place of a job that failed and will be tried again.
type Failed uint8

// What a failed job can do with its place.
const (
	// KeepPlace makes the jobs of its key wait until it was tried again: the order
	// is kept. With the policy Replace a newer one does not wait.
	KeepPlace Failed = iota
	// LetPass lets them pass: the job joins at the end when it is tried again.
	LetPass
)

// AfterLimit is what becomes of a job whose Limit is over. There is no default: it has to
// be chosen.
type AfterLimit uint8

const (
	// Fail fails this attempt with dibs.ErrHeld.
	Fail AfterLimit = iota + 1
	// RunAnyway runs the job without its key.
	RunAnyway
	// GiveUp hands the job to Options.GaveUp, which has to note it down; the job is done.
	GiveUp
)

// Defaults of Options.
const (
	DefaultAhead    = 8 // with Permits 1
	DefaultWait     = 10 * time.Second
	DefaultHold     = 10 * time.Second
	DefaultRecovery = 2 * time.Minute
	DefaultPlaceTTL = 7 * 24 * time.Hour
)

// Options say how the jobs of one kind, or of several that share keys, take turns.
// The zero value, and nil, mean the defaults.
type Options struct {
	// Policy says what a job does whose key is held. Default: Requeue.
	Policy Policy
	// Permits is how many jobs of a key may run at once. Default: 1.
	Permits int
	// TTL is how long the key is kept from others when a worker has died. It has
	// nothing to do with how long a job takes. Default: the client's.
	TTL time.Duration

	// Unordered takes places when jobs reach a worker, and not when they are
	// enqueued: the jobs of a key run in about the order of the queue.
	Unordered bool
	// Hold is how long a key may lie idle because of places whose jobs no worker has had,
	// counted from when another job could have had it: the places of jobs whose enqueuing
	// was rolled back, or that were cancelled. However many there are, they cost one
	// Hold. Default: 10 s.
	//
	// A worker that is killed in the moment between taking a job from its queue and
	// asking for the job's turn, or a second or so later when the job is next for its
	// key, leaves such a place too. Where the order must survive also that, give Hold
	// the time of Recovery.
	Hold time.Duration
	// Recovery is Hold for a job that was in a worker before: how long the others of
	// its key wait for one whose worker has died, beyond TTL, or that is late to come
	// back. It should be longer than the queue takes to give a dead worker's job to
	// another. What a failed job waits until it is tried again is added. Default:
	// 2 min.
	Recovery time.Duration
	// PlaceTTL is how long a place lasts in all, if no other job wants the key.
	// Default: 7 days.
	PlaceTTL time.Duration
	// Failed says what becomes of the place of a job that failed and will be tried
	// again. Default: KeepPlace.
	Failed Failed

	// Ahead is how many unfinished jobs of a key are runnable in their queue: one runs, and
	// the others wait in workers for their turn. All other jobs of the key are parked, if
	// the queue can do that. At least Permits. Default: 8, and as many more as Permits is
	// above 1.
	Ahead int

	// Wait is how long a job with the policy Wait waits in a worker before it comes
	// back all the same. Default: 10 s.
	Wait time.Duration

	// Limit is how long a job waits for its turn in all, counted from when it was
	// due; see Job.Due. Default: without limit.
	Limit time.Duration
	// AfterLimit is what happens to a job whose Limit is over. It must be chosen if
	// there is one.
	AfterLimit AfterLimit
	// GaveUp notes a job down that was given up: in a dead-letter table, a queue, a
	// file. If it returns an error the attempt fails with that, and the job comes
	// again. Required with GiveUp.
	GaveUp func(ctx context.Context, j Job, waited time.Duration) error

	// Period is how long Periodic remembers that the key was done.
	Period time.Duration

	// Once is how long it is remembered that a job has run to its end, by its Kind
	// and ID, so that a second delivery does nothing. Default: it is not.
	Once time.Duration
	// Transactor, if not nil, makes jobs run in a transaction that is committed
	// together with what Once remembers: exactly once. See dibs.Transactor.
	Transactor dibs.Transactor

	// Logger gets a line for jobs that waited, were requeued, skipped, given up or lost
	// their key. Keys are named by their digests. Default: slog.Default.
	Logger *slog.Logger
	// Observe is called with what happens to jobs, on the goroutine on which it
	// happens: it must not block. Default: it is not called.
	Observe func(context.Context, Event)
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	r.Permits = cmp.Or(r.Permits, 1)
	r.Hold = cmp.Or(r.Hold, DefaultHold)
	r.Recovery = cmp.Or(r.Recovery, DefaultRecovery)
	r.PlaceTTL = cmp.Or(r.PlaceTTL, DefaultPlaceTTL)
	r.Wait = cmp.Or(r.Wait, DefaultWait)
	r.Ahead = cmp.Or(r.Ahead, DefaultAhead-1+r.Permits)
	if r.Logger == nil {
		r.Logger = slog.Default()
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"TTL", r.TTL}, {"Hold", r.Hold}, {"Recovery", r.Recovery}, {"PlaceTTL", r.PlaceTTL},
		{"Wait", r.Wait}, {"Limit", r.Limit}, {"Period", r.Period}, {"Once", r.Once},
	} {
		if d.d < 0 {
			return r, fmt.Errorf("jobs: Options.%s is %v; it must not be negative", d.name, d.d)
		}
	}
	switch {
	case r.Policy > Periodic:
		return r, fmt.Errorf("jobs: Options.Policy is %d; there is no such policy", r.Policy)
	case r.Failed > LetPass:
		return r, fmt.Errorf("jobs: Options.Failed is %d; it must be KeepPlace or LetPass", r.Failed)
	case r.Permits < 1 || r.Permits > dibs.MaxPermits:
		return r, fmt.Errorf("jobs: Options.Permits is %d; it must be 1 to %d", r.Permits, dibs.MaxPermits)
	case r.Ahead < r.Permits:
		return r, fmt.Errorf("jobs: Options.Ahead is %d; it must be at least Permits, %d, because so many run at once", r.Ahead, r.Permits)
	case r.TTL != 0 && r.TTL < dibs.MinTTL:
		return r, fmt.Errorf("jobs: Options.TTL is %v; it must be at least %v", r.TTL, dibs.MinTTL)
	case r.PlaceTTL < r.Hold || r.PlaceTTL < r.Recovery:
		return r, fmt.Errorf("jobs: Options.PlaceTTL is %v; it must not be less than Hold, %v, and Recovery, %v", r.PlaceTTL, r.Hold, r.Recovery)
	case (r.Limit > 0) != (r.AfterLimit != 0) || r.AfterLimit > GiveUp:
		return r, errors.New("jobs: Options.Limit needs AfterLimit, one of Fail, RunAnyway and GiveUp, and AfterLimit needs a Limit")
	case (r.AfterLimit == GiveUp) != (r.GaveUp != nil):
		return r, errors.New("jobs: Options.GaveUp and AfterLimit: GiveUp need one another")
	case (r.Policy == Periodic) != (r.Period > 0):
		return r, errors.New("jobs: Options.Period and Policy: Periodic need one another")
	case (r.Policy == Periodic || r.Policy == Replace) && r.Permits > 1:
		return r, errors.New("jobs: Options.Permits must be 1 with the policies Periodic and Replace")
	case r.Policy == Replace && r.Unordered:
		return r, errors.New("jobs: Options.Unordered cannot be with Policy: Replace, for which it matters which job is the newest")
	case r.Policy == Periodic && (r.Once > 0 || r.Transactor != nil):
		return r, errors.New("jobs: Options.Once and Transactor cannot be with Policy: Periodic, which remembers by itself")
	case r.Transactor != nil && r.Once == 0:
		return r, errors.New("jobs: Options.Transactor needs Once: how long to remember what was committed")
	}
	return r, nil
}

// queues reports whether jobs have places in their key's queue.
func (p Policy) queues() bool { return p == Requeue || p == Wait || p == Replace }
