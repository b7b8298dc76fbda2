package jobs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// Mutex lets jobs of one key take turns. It is safe for concurrent use; a program
// has one for each set of Options. All programs that enqueue or run the same jobs
// give it the same Options, as far as keys and places are concerned.
type Mutex struct {
	client  *dibs.Client
	options Options

	rooms rooms
	mu    sync.Mutex
	stats Stats // guarded by mu

	life context.Context // ends with Close: no job waits any more
	end  context.CancelFunc
}

// New returns a Mutex. The error names the option that is wrong.
func New(c *dibs.Client, o *Options) (*Mutex, error) {
	if c == nil {
		return nil, errors.New("jobs: New was given no client")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Mutex{client: c, options: options}
	m.life, m.end = context.WithCancel(context.Background())
	return m, nil
}

// Close ends waiting, for the end of the process: jobs that wait in a worker come back
// at once, but not those with NoRequeue. What runs goes on. Call it before the queue's workers
// are stopped, and close the client after that.
func (m *Mutex) Close() { m.end() }

// Options returns the Mutex's options with their defaults.
func (m *Mutex) Options() Options { return m.options }

func (m *Mutex) closed() bool { return m.life.Err() != nil }

// Run runs fn for a job when its turn has come, and says what is to become of the
// job: nil, it is done (it ran; or it was skipped, replaced, given up, or done before,
// as the Options say); a *RequeueError, it is to be given to a worker again and has
// not failed; anything else, it has failed. The context that fn gets ends when the key
// is lost, with cause dibs.ErrLost, and carries what there is to know (see
// FromContext).
//
// The key is given up when fn returns, panics or calls runtime.Goexit.
func (m *Mutex) Run(ctx context.Context, j Job, fn func(context.Context) error) error {
	if j.Key == "" {
		m.Cancel(ctx, j.Ticket) // it had a key when it was enqueued
		return fn(ctx)
	}
	a, err := m.attempt(ctx, j)
	if err != nil {
		return err
	}
	defer a.over()
	switch m.options.Policy {
	case Skip:
		return a.skip(ctx, fn)
	case Periodic:
		return a.periodic(ctx, fn)
	default:
		return a.queue(ctx, fn)
	}
}

// attempt is a job that a worker has.
type attempt struct {
	mutex  *Mutex
	job    Job
	place  dibs.Place
	number uint64 // of its enqueuing, with Replace; 0 when it is not known

	placed bool      // it has a place in the queue, or had one
	since  time.Time // it waits since then
	here   time.Time // the worker has it since then
	tries  int
	waited time.Duration
	began  time.Time
	lease  *dibs.Lease

	waiting context.CancelCauseFunc // ends the wait, and the lease that it led to
}

// over frees what the attempt's contexts have.
func (a *attempt) over() {
	if a.waiting != nil {
		a.waiting(nil)
	}
}

func (m *Mutex) attempt(ctx context.Context, j Job) (*attempt, error) {
	a := &attempt{mutex: m, job: j, since: j.Due, here: time.Now(), tries: max(j.Tries, 1)}
	key := m.client.Key(j.Key)
	a.place.Key = key
	if !m.options.Policy.queues() {
		m.Cancel(ctx, j.Ticket) // of another policy, under which it was enqueued
		return a, nil
	}
	if j.Ticket != "" {
		t, err := parseTicket(j.Ticket)
		switch {
		case err != nil:
			m.options.Logger.WarnContext(ctx, "dibs: a job's ticket cannot be read; it joins those of its key at the end", "kind", j.Kind, "job", j.ID, "error", err)
		case t.place.Key != key:
			m.options.Logger.WarnContext(ctx, "dibs: a job's key was another when it was enqueued; it joins those of its key at the end", "kind", j.Kind, "job", j.ID, "key", key.Digest())
			a.giveUp(ctx, t.place)
		default:
			a.place, a.number, a.placed = t.place, t.number, true
		}
	}
	if !a.placed {
		if j.ID == "" {
			return nil, errors.New("jobs: a job has neither a Ticket nor an ID; it needs one of them to have a place")
		}
		a.place = j.derived(key)
	}
	if err := key.Validate(); err != nil {
		return nil, err
	}
	return a, nil
}

// acquire returns the options with which the attempt takes the key.
func (a *attempt) acquire() *dibs.AcquireOptions {
	o := &a.mutex.options
	return &dibs.AcquireOptions{
		TTL: o.TTL, Permits: o.Permits, Hold: o.Recovery,
		Label: a.job.Kind + " " + a.job.ID,
	}
}

// refused reports that the job comes back, or why its key could not be had, unless the
// caller has gone away.
func (a *attempt) refused(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*RequeueError](err); ok {
		a.mutex.tell(ctx, a, EventRequeued, nil)
	} else if ctx.Err() == nil {
		a.mutex.tell(ctx, a, EventRefused, err)
	}
	return err
}

// settlePatience is how long an attempt that is over tries to give things back.
const settlePatience = 5 * time.Second

// giveUp gives a place up, on a context that the job's end does not reach.
func (a *attempt) giveUp(ctx context.Context, p dibs.Place) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
	defer cancel()
	// A place that is not given up is in the way for its Hold at most.
	_ = a.mutex.client.CancelPlace(ctx, p)
}
