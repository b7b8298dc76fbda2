package jobs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// Mutex serializes the jobs of each key. It is safe for concurrent use. A program has one
// for each set of Options. All programs that enqueue or run the same jobs must use the
// same Options for keys and places.
type Mutex struct {
	client  *dibs.Client
	options Options

	waitingIn poolWaits
	mu        sync.Mutex
	stats     Stats // guarded by mu
	lastAway  minutely

	closing context.Context // ends with Close
	end     context.CancelFunc
}

// New returns a Mutex. The error names the wrong option.
func New(c *dibs.Client, o *Options) (*Mutex, error) {
	if c == nil {
		return nil, errors.New("jobs: the client given to New is nil")
	}
	options, err := o.withDefaults(c.Options())
	if err != nil {
		return nil, err
	}
	m := &Mutex{client: c, options: options}
	m.closing, m.end = context.WithCancel(context.Background())
	return m, nil
}

// Close ends waiting: jobs that wait in a worker are requeued at once, except those with
// NoRequeue. Running jobs go on. Call it before the queue's workers stop, and close the
// client after that.
func (m *Mutex) Close() { m.end() }

// Options returns the options with their defaults filled in.
func (m *Mutex) Options() Options { return m.options }

func (m *Mutex) closed() bool { return m.closing.Err() != nil }

// Run runs fn for a job when its turn has come. It returns nil when the job is done: it
// ran, or was skipped, replaced, given up, or done before. It returns a *RequeueError
// when the queue should give the job to a worker again. Any other error means that the
// job failed. fn's context ends with cause dibs.ErrLost when the key is lost; FromContext
// returns the Run of the job.
//
// The key is released when fn returns, panics or calls runtime.Goexit.
func (m *Mutex) Run(ctx context.Context, j Job, fn func(context.Context) error) error {
	if fn == nil {
		return errors.New("jobs: Run was given no function; pass the function that runs the job")
	}
	if j.Key == "" {
		m.Cancel(ctx, j.Ticket) // it may have had a key when it was enqueued
		return fn(ctx)
	}
	a, err := m.attempt(ctx, j)
	if err != nil {
		return err
	}
	defer a.done()
	if m.options.Policy == Skip {
		return a.skip(ctx, fn)
	}
	return a.queue(ctx, fn)
}

// attempt is one try of a worker at a job.
type attempt struct {
	mutex  *Mutex
	job    Job
	place  dibs.Place
	number uint64 // of the enqueue, with Replace and CancelRunning; 0: unknown

	placed bool // it has or had a place in the queue
	// recovers says that its place has the Grace of a job that has begun, because the claim that
	// got the key set it.
	recovers bool
	since    time.Time // start of the wait for its turn
	here     time.Time // when this worker got it
	tries    int

	remembered bool // Once remembers that it was done

	waited time.Duration
	began  time.Time
	lease  *dibs.Lease

	waiting context.CancelCauseFunc // ends the wait and its lease
}

// done ends the attempt's contexts.
func (a *attempt) done() {
	if a.waiting != nil {
		a.waiting(nil)
	}
}

func (m *Mutex) attempt(ctx context.Context, j Job) (*attempt, error) {
	a := &attempt{mutex: m, job: j, since: j.Due, here: time.Now(), tries: max(j.Tries, 1)}
	key := m.client.Key(j.Key)
	a.place.Key = key
	if !m.options.Policy.queues() {
		// A version with another policy may have given the job a place, which would block the key:
		// when it was enqueued, or in a worker that requeued it.
		if m.Cancel(ctx, j.Ticket); j.Ticket == "" && j.ID != "" {
			a.giveUp(ctx, j.derived(key))
		}
		return a, nil
	}
	if j.Ticket != "" {
		t, err := parseTicket(j.Ticket)
		switch {
		case err != nil:
			m.options.Logger.WarnContext(ctx, "dibs: a job's ticket cannot be read, so the job joins the end of its key's queue", "kind", j.Kind, "job", j.ID, "error", err)
		case t.place.Key != key:
			m.options.Logger.WarnContext(ctx, "dibs: a job's key has changed since it was enqueued, so the job joins the end of its key's queue", "kind", j.Kind, "job", j.ID, "key", key.Digest())
			a.giveUp(ctx, t.place)
		default:
			a.place, a.number, a.placed = t.place, t.number, true
		}
	}
	if !a.placed {
		if j.ID == "" {
			return nil, errors.New("jobs: a job has neither a Ticket nor an ID; set one, because its place needs it")
		}
		a.place = j.derived(key)
	}
	if err := key.Validate(); err != nil {
		return nil, err
	}
	return a, nil
}

// acquire returns the options of the attempt's claim.
func (a *attempt) acquire() dibs.AcquireOptions {
	o := &a.mutex.options
	return dibs.AcquireOptions{
		TTL: o.TTL, MaxLifetime: o.MaxLifetime, Permits: o.Permits, Label: a.job.label(),
	}
}

// refused reports a requeue, or a failed claim unless the caller's context has ended.
func (a *attempt) refused(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*RequeueError](err); ok {
		a.mutex.report(ctx, a, EventRequeued, nil)
	} else if ctx.Err() == nil {
		a.mutex.report(ctx, a, EventRefused, err)
	}
	return err
}

// settleLimit bounds the calls that give places and leases back.
const settleLimit = 5 * time.Second

// giveUp ends a place, even after the job's context has ended.
func (a *attempt) giveUp(ctx context.Context, p dibs.Place) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	// A place that is not given back blocks the key for at most its Grace.
	_ = a.mutex.client.CancelPlace(ctx, p)
}
