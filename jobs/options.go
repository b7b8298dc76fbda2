package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// Policy is what a job does when its key is held.
type Policy uint8

// The policies of a job whose key is held, or that has other jobs before it.
const (
	// Requeue waits in the worker if fewer than half of the pool's workers wait, and is
	// requeued otherwise. The job keeps its place.
	Requeue Policy = iota
	// Wait waits in the worker for at most Options.Wait, and is requeued then.
	Wait
	// Skip ends the job as done, because another job does the same now.
	Skip
	// Replace is Requeue, but a job ends as done without running when a job that was
	// enqueued later for the same key has reached a worker. So the newest job runs.
	Replace
	// CancelRunning is Replace, but also ends the context of the job that runs, with a
	// *ReplacedError as the cause. If that job then returns an error, it ends as done. The
	// newest job runs when it has returned.
	CancelRunning
)

// Failed is what happens to the place of a job that failed and will be tried again.
type Failed uint8

// The values of Failed.
const (
	// KeepPlace blocks the key's other jobs until this one is tried again, so the order
	// is kept. With the policies Replace and CancelRunning a newer job does not wait.
	KeepPlace Failed = iota
	// LetPass lets other jobs pass: the job joins the end of the queue when it is tried
	// again.
	LetPass
)

// AfterLimit is what happens to a job whose Limit is over. It has no default.
type AfterLimit uint8

const (
	// Fail fails this try with dibs.ErrHeld.
	Fail AfterLimit = iota + 1
	// RunAnyway runs the job without its key.
	RunAnyway
	// GiveUp passes the job to Options.GaveUp, which must store it. The job ends as done.
	GiveUp
)

// Defaults of Options.
const (
	DefaultAhead      = 8 // with Permits 1
	DefaultWait       = 10 * time.Second
	DefaultGrace      = 10 * time.Second
	DefaultCrashGrace = 2 * time.Minute
	DefaultPlaceTTL   = 7 * 24 * time.Hour
)

// Options configures a Mutex, for the jobs of one kind or of several kinds that share
// keys. nil and the zero value mean the defaults.
type Options struct {
	// Policy is what a job does when its key is held. Default: Requeue.
	Policy Policy
	// Permits is how many jobs of a key may run at once. Default: 1.
	Permits int
	// Total is how many jobs of all keys may run at once, in all programs with the same
	// TotalKey. A job takes a permit of TotalKey when its turn on its own key has come, and
	// holds its key while it waits for that. Not with the policy Skip, and RunAnyway
	// does not take a permit. Default: no limit.
	Total int
	// TotalKey is the key of Total. Required with Total.
	TotalKey string
	// TTL is how long the key stays blocked after a worker has died. Jobs may run longer.
	// Default: the client's.
	TTL time.Duration

	// MaxLifetime is how long a job may hold its key in all. Then its context ends with cause
	// dibs.ErrLost. If the job hangs, another job gets the key as after a crash: after TTL,
	// and CrashGrace if this job has a place. Default: no limit.
	MaxLifetime time.Duration

	// Unordered reserves a job's place when it reaches a worker, not when it is enqueued.
	// The jobs of a key then run in about the order of the queue. Default: false.
	Unordered bool
	// Grace is how long a key may lie idle because of places whose jobs have not been in a
	// worker, counted from when another job could have run. Such jobs were deleted, or their
	// enqueue was rolled back. It is the same if a worker is killed while its job waits for
	// its turn, and then about two seconds are added. All of them together cost one Grace.
	// Default: 10 s.
	//
	// If a worker that is killed while its job waits must not change the order, set Grace to
	// CrashGrace.
	Grace time.Duration
	// CrashGrace is Grace for a job that has begun, or that its worker gave back to its queue:
	// how long other jobs of its key wait, beyond TTL, for a job whose worker died, or that
	// failed or was requeued and is late, because all workers are busy. Set it above the
	// time that the queue needs to give a dead worker's job to another worker. The time
	// until the job should come again is added. Default: 2 min.
	CrashGrace time.Duration
	// PlaceTTL is how long a place lasts if no other job wants the key. Default: 7 days.
	PlaceTTL time.Duration
	// Failed is what happens to the place of a job that failed and will be tried again.
	// Default: KeepPlace.
	Failed Failed

	// Ahead is how many unfinished jobs of a key are runnable in their queue: running
	// ones and ones that wait in workers. The other jobs of the key are parked if the
	// queue supports that. At least Permits. Default: 7 + Permits.
	Ahead int

	// Wait is how long a job with the policy Wait waits in a worker before it is
	// requeued. Default: 10 s.
	Wait time.Duration

	// Limit bounds the whole wait for the job's turn, counted from Job.Due. Default: no
	// limit.
	Limit time.Duration
	// AfterLimit is what happens to a job whose Limit is over. Required with a Limit.
	AfterLimit AfterLimit
	// GaveUp stores a job that was given up, for example in a dead-letter table. If it
	// returns an error, the try fails with it and the job is tried again. Required
	// with GiveUp.
	GaveUp func(ctx context.Context, j Job, waited time.Duration) error

	// Once is how long it is remembered that a job was done, by its Kind and ID, so that
	// a second delivery does nothing. Default: it is not remembered.
	Once time.Duration
	// Transactor, if not nil, runs jobs in a transaction that commits together with the
	// record of Once: exactly once. See dibs.Transactor.
	Transactor dibs.Transactor

	// Logger gets one line for each job, when it has ended in a worker, at DEBUG. The line is
	// at WARN if the job lost its key, was given up, ran anyway, was not run because its Limit
	// was over, or could not claim its key; once a minute for all jobs if the store does not
	// answer. A requeued job gets no line. A job that begins after another one of its key
	// crashed or failed gets a line at INFO. Keys are logged by their digests, as dibs ls has
	// them. Default: Options.Logger of the client.
	Logger *slog.Logger
	// Observe is called with each event, on the job's goroutine; it must not block.
	// Default: none.
	Observe func(context.Context, Event)
}

// withDefaults returns a copy whose fields have values. of is what the client has.
func (o *Options) withDefaults(of dibs.Options) (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	r.Permits = cmp.Or(r.Permits, 1)
	r.Grace = cmp.Or(r.Grace, DefaultGrace)
	r.CrashGrace = cmp.Or(r.CrashGrace, DefaultCrashGrace)
	r.PlaceTTL = cmp.Or(r.PlaceTTL, DefaultPlaceTTL)
	r.Wait = cmp.Or(r.Wait, DefaultWait)
	r.Ahead = cmp.Or(r.Ahead, DefaultAhead-1+r.Permits)
	r.Logger = cmp.Or(r.Logger, of.Logger)
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"TTL", r.TTL}, {"MaxLifetime", r.MaxLifetime}, {"Grace", r.Grace}, {"CrashGrace", r.CrashGrace}, {"PlaceTTL", r.PlaceTTL},
		{"Wait", r.Wait}, {"Limit", r.Limit}, {"Once", r.Once},
	} {
		if d.d < 0 {
			return r, fmt.Errorf("jobs: Options.%s is %v; it must not be negative", d.name, d.d)
		}
	}
	switch {
	case r.Policy > CancelRunning:
		return r, fmt.Errorf("jobs: Options.Policy is %d; there is no such policy", r.Policy)
	case r.Failed > LetPass:
		return r, fmt.Errorf("jobs: Options.Failed is %d; it must be KeepPlace or LetPass", r.Failed)
	case r.Permits < 1 || r.Permits > store.MaxPermits:
		return r, fmt.Errorf("jobs: Options.Permits is %d; it must be 1 to %d", r.Permits, store.MaxPermits)
	case r.Ahead < r.Permits:
		return r, fmt.Errorf("jobs: Options.Ahead is %d; it must be at least Permits, %d, because that many jobs run at once", r.Ahead, r.Permits)
	case r.Total < 0 || r.Total > store.MaxPermits:
		return r, fmt.Errorf("jobs: Options.Total is %d; it must be 0, no limit, to %d", r.Total, store.MaxPermits)
	case (r.Total > 0) != (r.TotalKey != ""):
		return r, errors.New("jobs: Options.Total and TotalKey need each other")
	case r.Total > 0 && !r.Policy.queues():
		return r, errors.New("jobs: Options.Total does not work with the policy Skip")
	case r.TTL != 0 && r.TTL < dibs.MinTTL:
		return r, fmt.Errorf("jobs: Options.TTL is %v; it must be at least %v", r.TTL, dibs.MinTTL)
	case r.PlaceTTL < r.Grace || r.PlaceTTL < r.CrashGrace:
		return r, fmt.Errorf("jobs: Options.PlaceTTL is %v; it must not be less than Grace, %v, and CrashGrace, %v", r.PlaceTTL, r.Grace, r.CrashGrace)
	case (r.Limit > 0) != (r.AfterLimit != 0) || r.AfterLimit > GiveUp:
		return r, errors.New("jobs: Options.Limit needs AfterLimit, one of Fail, RunAnyway and GiveUp, and AfterLimit needs a Limit")
	case (r.AfterLimit == GiveUp) != (r.GaveUp != nil):
		return r, errors.New("jobs: Options.GaveUp and AfterLimit: GiveUp need each other")
	case r.Policy.Replaces() && r.Permits > 1:
		return r, errors.New("jobs: Options.Permits must be 1 with the policies Replace and CancelRunning")
	case r.Policy.Replaces() && r.Unordered:
		return r, errors.New("jobs: Options.Unordered does not work with the policies Replace and CancelRunning, which must know the newest job")
	case r.Transactor != nil && r.Once == 0:
		return r, errors.New("jobs: Options.Transactor needs Options.Once, the retention of its record")
	}
	return r, nil
}

// queues reports whether jobs of the policy have places in the queue.
func (p Policy) queues() bool { return p != Skip }

// Replaces reports whether a newer job of the key replaces older ones: Replace and
// CancelRunning.
func (p Policy) Replaces() bool { return p == Replace || p == CancelRunning }

// keepsOrder reports whether a failed job blocks the later jobs of its key until it is tried
// again.
func (o *Options) keepsOrder() bool {
	return (o.Policy == Requeue || o.Policy == Wait) && o.Failed == KeepPlace
}
