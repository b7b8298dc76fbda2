package dibs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of Options.
const (
	DefaultTTL     = 30 * time.Second
	DefaultTimeout = 5 * time.Second
	// MinTTL is the shortest lease that a Client takes.
	MinTTL = 10 * time.Millisecond
)

// Options are what all calls of a Client have in common. The zero value, and
// nil, mean the defaults.
type Options struct {
	// Namespace keeps this client's keys apart from those of other namespaces
	// on the same store: 0 to MaxNamespace bytes of printable ASCII without
	// spaces. Default: the empty namespace.
	Namespace string

	// TTL is how long a lease outlives a holder that has stopped renewing it.
	// A live holder renews every third of it. Default: DefaultTTL.
	TTL time.Duration

	// Wait is how long Do and Acquire wait for their turn before they return
	// ErrHeld. Default: as long as their context allows.
	Wait time.Duration

	// Label tells operators what this client's keys are held for. Default:
	// none.
	Label string

	// Timeout bounds one call of the store, and how long a settlement is made again that
	// finds the store busy with its key. Default: DefaultTimeout.
	Timeout time.Duration

	// Observe is told what happens to claims and leases, on the goroutine on
	// which it happens: it must not block. The context has the values of the one with
	// which the key was asked for. Default: nobody is told.
	Observe func(context.Context, Event)

	// ObserveStore is told of each call of the store when it is over, on the goroutine
	// on which it was made: it must not block. Default: nobody is told.
	ObserveStore func(StoreCall)
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if err := validateNamespace(r.Namespace); err != nil {
		return r, fmt.Errorf("dibs: Options.Namespace: %w", err)
	}
	r.TTL = cmp.Or(r.TTL, DefaultTTL)
	r.Timeout = cmp.Or(r.Timeout, DefaultTimeout)
	switch {
	case r.TTL < MinTTL:
		return r, fmt.Errorf("dibs: Options.TTL is %v; it must be at least %v", r.TTL, MinTTL)
	case r.Wait < 0:
		return r, fmt.Errorf("dibs: Options.Wait is %v; it must not be negative", r.Wait)
	case r.Timeout < 0:
		return r, fmt.Errorf("dibs: Options.Timeout is %v; it must not be negative", r.Timeout)
	}
	return r, nil
}

// Client calls dibs on keys of one namespace of one store. It is safe for
// concurrent use; a program usually has one. Close it before its store.
type Client struct {
	store   Store
	options Options
	owner   Owner
	epoch   time.Time // where the client's monotonic time is counted from

	claims  *batcher[Claim, Answer]
	settles *batcher[Settlement, error]
	renewer *renewer
	waiters *waiters
	undoer  *undoer
	// orphaned is undoer.orphan, made once.
	orphaned func(Claim, Answer, error)

	counts  counts
	closed  atomic.Bool
	done    chan struct{} // closed by Close: whoever waits gives up
	asking  atomic.Int64  // how many callers may have something to be undone
	quiet   chan struct{} // has an element when none is left, once closed
	close   sync.Once
	closing error
}

// New returns a client of the store. The error names the option that is wrong.
func New(store Store, o *Options) (*Client, error) {
	if store == nil {
		return nil, errors.New("dibs: New was given no store")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	var batching Batching
	if b, ok := store.(Batcher); ok {
		batching = b.Batching()
	}
	c := &Client{
		store:   store,
		options: options,
		owner:   Owner{Host: hostname(), PID: os.Getpid(), Label: options.Label},
		epoch:   time.Now(),
		done:    make(chan struct{}),
		quiet:   make(chan struct{}, 1),
	}
	c.waiters = newWaiters(store)
	if options.ObserveStore != nil {
		store = observed{store, options.ObserveStore}
		c.store = store
	}
	c.claims = newBatcher(batching, options.Timeout, store.Claim)
	c.settles = newBatcher(batching, options.Timeout, store.Settle)
	c.renewer = newRenewer(store, batching, options.Timeout)
	c.undoer = newUndoer(store, batching, options.Timeout)
	c.orphaned = c.undoer.orphan
	return c, nil
}

// hostname is looked up once; "unknown" where the system does not tell.
var hostname = sync.OnceValue(func() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
})

// Do waits for its turn on the key and runs fn while it holds it. The context
// that fn gets ends with cause ErrLost when the lease is lost, and carries the
// lease (see FromContext). The key is released when fn returns, panics or
// calls runtime.Goexit.
//
// It returns what fn returned; ErrHeld when Options.Wait was over first, the
// context's cause when it ended first, ErrStore when the store did not answer
// (in all these cases fn did not run); and ErrLost, joined to what fn returned,
// when the lease was lost while fn ran, so that the section may not have been
// alone.
func (c *Client) Do(ctx context.Context, key string, fn func(context.Context) error) error {
	return c.run(ctx, key, nil, fn)
}

// TryDo is Do for those who would rather not wait: it returns ErrHeld at once
// when the key is held or others wait for it.
func (c *Client) TryDo(ctx context.Context, key string, fn func(context.Context) error) error {
	return c.run(ctx, key, &tryOptions, fn)
}

var tryOptions = AcquireOptions{NoWait: true}

func (c *Client) run(ctx context.Context, key string, o *AcquireOptions, fn func(context.Context) error) error {
	lease, err := c.Acquire(ctx, key, o)
	if err != nil {
		return err
	}
	return lease.run(fn)
}

// Held reports whether somebody holds the key or waits for it, without taking
// it. What it says may be over by the time it is read. It returns ErrUnknown
// when an earlier attempt's outcome is unknown.
func (c *Client) Held(ctx context.Context, key string) (bool, error) {
	claim, err := c.newClaim(key, nil)
	if err != nil {
		return false, err
	}
	claim.Mode = Look
	a, _, err := c.ask(ctx, bid{Claim: claim}, noWait)
	switch {
	case err != nil:
		return false, err
	case a.State == Held:
		return true, nil
	case a.State == Free:
		return false, nil
	}
	return false, refusal(claim, a)
}

// Record returns what the key's last finished holder left behind, if it is still kept,
// without taking the key: what Complete wrote, or Once, which has a form of its own.
func (c *Client) Record(ctx context.Context, key string) (r Record, ok bool, err error) {
	claim, err := c.newClaim(key, nil)
	if err != nil {
		return r, false, err
	}
	claim.Mode, claim.MaxAge = Look, AnyAge
	a, _, err := c.ask(ctx, bid{Claim: claim}, noWait)
	return a.Record, err == nil && a.State == Done, err
}

// Key returns the key of that name in the client's namespace.
func (c *Client) Key(name string) Key { return Key{Namespace: c.options.Namespace, Name: name} }

// closeGrace is how long Close waits for holders to release.
const closeGrace = 5 * time.Second

// Close ends the client: calls that wait return ErrClosed, the contexts of
// live leases end with cause ErrClosed, and Close waits up to 5 s for their
// holders to release them and for what has to be undone. Leases that are still
// held then are no longer renewed and run out by themselves; the error counts
// them, and what else was left. The store stays open.
func (c *Client) Close() error {
	c.close.Do(func() {
		c.closed.Store(true)
		close(c.done)
		deadline := time.Now().Add(closeGrace)
		left := c.renewer.stop(deadline)
		open := c.settleDown(deadline)
		undone, why := c.undoer.flush(deadline)
		c.waiters.stop()
		var errs []error
		if left > 0 {
			errs = append(errs, fmt.Errorf("dibs: closed while %d leases were held; they run out within their TTL", left))
		}
		if open > 0 {
			errs = append(errs, fmt.Errorf("dibs: closed while %d calls to the store had no answer; what they get runs out within its TTL", open))
		}
		if undone > 0 {
			errs = append(errs, fmt.Errorf("dibs: closed while %d claims could not be undone; they run out within their TTL: %w", undone, why))
		}
		c.closing = errors.Join(errs...)
	})
	return c.closing
}

// enter notes that a caller asks for a key; leave, that what it got is with the
// renewer, the undoer or a batch.
func (c *Client) enter() { c.asking.Add(1) }

func (c *Client) leave() {
	if c.asking.Add(-1) == 0 && c.closed.Load() {
		select {
		case c.quiet <- struct{}{}:
		default:
		}
	}
}

// settleDown waits for those who ask and for the batches that they left behind,
// at most until the deadline, so that the undoer knows all that it has to, and nothing
// goes to the store any more but what it sends. It returns how many calls are left.
func (c *Client) settleDown(deadline time.Time) int {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for c.asking.Load() > 0 {
		select {
		case <-c.quiet:
		case <-timer.C:
			return int(c.asking.Load())
		}
	}
	for _, rest := range [...]<-chan struct{}{c.claims.idle(), c.settles.idle()} {
		select {
		case <-rest:
			continue // also when the deadline has passed
		default:
		}
		select {
		case <-rest:
		case <-timer.C:
			return 1
		}
	}
	return 0
}
