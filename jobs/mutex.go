package jobs

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// Mutex lets jobs of one key take turns. It is safe for concurrent use; a program
// has one for each set of Options. All programs that enqueue or run the same jobs
// give it the same Options, as far as keys and places are concerned.
type Mutex struct {
	client  *dibs.Client
	options Options

	lines lines
	runs  mean // how long jobs run
	paths mean // how long it takes until a worker has a job that was made runnable
	asks  mean // how long the store takes to answer

	counts           counts
	waiting, running atomic.Int64

	life context.Context // ends with Close: nobody waits any more
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
	m := &Mutex{
		client: c, options: options,
		runs:  mean{rises: runsRiseBy, falls: runsFallBy},
		paths: mean{rises: pathsRiseBy, falls: pathsFallBy},
		asks:  mean{rises: pathsRiseBy, falls: pathsFallBy},
	}
	m.life, m.end = context.WithCancel(context.Background())
	m.lines.init(m)
	return m, nil
}

// Close ends waiting, for the end of the process: jobs that wait in a worker come
// back at once, but for those that Stay, and those that were put off are made runnable,
// to be given to another process. What runs goes on. Call it before the queue's workers are stopped, and close
// the client after that. It takes 5 s at most; what the queue has not heard of by then
// comes back by itself.
func (m *Mutex) Close() {
	m.end()
	m.lines.close()
}

func (m *Mutex) closed() bool { return m.life.Err() != nil }

// Run runs fn for a job when its turn has come, and says what is to become of the
// job: nil, it is done (it ran; or it was skipped, replaced, given up, or done before,
// as the Options say); a *ComeBackError, it is to be given to a worker again and has
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
	room   *room  // of its pool, with the policies that queue
	number uint64 // of its enqueuing, with Replace; 0 when it is not known

	stuck  int       // so many came before it when it began to wait in the worker and the key lay idle; or -1
	placed bool      // it has a place in the queue, or had one
	stood  time.Time // when that was made to stand as long as that of a job that is there
	since  time.Time // from when on it waits
	held   bool      // it has to wait, or had to: the key was another's
	here   time.Time // from when on the worker has it
	tries  int
	waited time.Duration
	began  time.Time
	lease  *dibs.Lease
	called time.Time // when it was made runnable to be here; zero when that is not known

	stirred bool // it was made runnable as the key lay idle, and that has not ended since

	waiting context.CancelCauseFunc // ends the wait, and the lease that it led to
}

// over frees what the attempt's contexts have.
func (a *attempt) over() {
	if a.waiting != nil {
		a.waiting(nil)
	}
}

func (m *Mutex) attempt(ctx context.Context, j Job) (*attempt, error) {
	a := &attempt{mutex: m, job: j, since: j.Due, here: time.Now(), tries: j.Tries, stuck: -1}
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
	m.lines.back(a)
	return a, nil
}

// acquire returns the options with which the attempt takes the key.
func (a *attempt) acquire() *dibs.AcquireOptions {
	o := &a.mutex.options
	return &dibs.AcquireOptions{
		TTL: o.TTL, Permits: o.Permits, Hold: o.Recovery,
		Label: cmp.Or(o.Label, a.job.Kind+" "+a.job.ID),
	}
}

// refused reports why a key could not be had, unless the caller has gone away.
func (a *attempt) refused(ctx context.Context, err error) error {
	if ctx.Err() == nil {
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
	// One that is not given up is in nobody's way for longer than its Hold.
	_ = a.mutex.client.GiveUp(ctx, p)
}
