package dibs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/store"
)

// defaultTimeout is the default of Options.Timeout.
const defaultTimeout = 5 * time.Second

// The default and the bound of Options.TTL.
const (
	// DefaultTTL is the default of Options.TTL.
	DefaultTTL = 30 * time.Second
	// MinTTL is the shortest lease that a Client takes.
	MinTTL = 10 * time.Millisecond
)

// Options are what all calls of a Client have in common. The zero value and nil mean the
// defaults.
type Options struct {
	// Namespace keeps this client's keys apart from those of other namespaces on the same
	// store: 0 to MaxNamespace bytes of printable ASCII without spaces. Default: the empty
	// namespace.
	Namespace string

	// TTL is how long a lease outlives a holder that has stopped renewing it. A live holder
	// renews after every third of it. At least MinTTL. Default: DefaultTTL.
	TTL time.Duration

	// Wait is how long Do and Acquire wait for their turn before they return ErrHeld.
	// Default: as long as their context allows.
	Wait time.Duration

	// Label tells operators what this client's keys are held for. Default: none.
	Label string

	// Timeout bounds one call of the store. It also bounds how long a settlement is sent
	// again while the store is busy with its key. Default: 5 s.
	Timeout time.Duration

	// Observe is called with what happens to claims and leases, on the goroutine on which
	// it happens. It must not block. Its context has the values of the caller's context.
	// Default: it is not called.
	Observe func(context.Context, Event)

	// ObserveStore is called after each call of the store, on the goroutine that made the
	// call. It must not block. Default: it is not called.
	ObserveStore func(StoreCall)

	// Logger gets a WARN line when calls of the store fail, at most one a minute, and one
	// when the store answers again. Each counts the calls that failed since the line before.
	// A call that its caller ends within a second does not count. The middlewares of this
	// client log to it, too, unless they have loggers of their own. Default: slog.Default().
	Logger *slog.Logger
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if err := store.ValidateNamespace(r.Namespace); err != nil {
		return r, fmt.Errorf("dibs: Options.Namespace: %w", err)
	}
	r.TTL = cmp.Or(r.TTL, DefaultTTL)
	r.Timeout = cmp.Or(r.Timeout, defaultTimeout)
	r.Logger = cmp.Or(r.Logger, slog.Default())
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

// Client takes keys of one namespace of one store. It is safe for concurrent use. A
// program usually has one. Close it before its store.
type Client struct {
	keeper
	options Options
	owner   store.Owner

	claims  *batch.Batcher[store.Claim, store.Answer]
	waiters *waiters
	late    func(store.Claim, store.Answer, error) // undoer.answered, made once

	closed  atomic.Bool
	active  atomic.Int64  // the calls under way that may leave something to be undone
	drained chan struct{} // has an element when active becomes 0 in a closed client
	close   sync.Once
	closing error
}

// New returns a client of the store. The error names the option that is wrong.
func New(s Store, o *Options) (*Client, error) {
	if s == nil {
		return nil, errors.New("dibs: New was given no store")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	var batching store.Batching
	if b, ok := s.(store.Batcher); ok {
		batching = b.Batching()
	}
	c := &Client{
		options: options,
		owner:   store.Owner{Host: hostname(), PID: os.Getpid(), Label: options.Label},
		drained: make(chan struct{}, 1),
		waiters: newWaiters(s),
	}
	var told func(outage.Call)
	if to := options.ObserveStore; to != nil {
		told = func(c outage.Call) { to(StoreCall(c)) }
	}
	s = outage.Observe(s, outage.New(options.Logger, "calls"), told)
	c.keeper = keeper{
		store:   s,
		epoch:   time.Now(),
		timeout: options.Timeout,
		observe: options.Observe,
		settles: batch.New(context.Background(), batch.Options(batching), options.Timeout, s.Settle),
		renewer: newRenewer(s, batching, options.Timeout),
		undoer:  newUndoer(s, batching, options.Timeout),
		done:    make(chan struct{}),
	}
	c.claims = batch.New(context.Background(), batch.Options(batching), options.Timeout, s.Claim)
	c.late = c.undoer.answered
	return c, nil
}

// hostname is "unknown" where the system does not say.
var hostname = sync.OnceValue(func() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
})

// Options returns the options with their defaults filled in.
func (c *Client) Options() Options { return c.options }

// Key returns the key of that name in the client's namespace.
func (c *Client) Key(name string) Key { return Key{Namespace: c.options.Namespace, Name: name} }

// closeGrace is how long Close waits for holders to release.
const closeGrace = 5 * time.Second

// Close ends the client. Calls that wait return ErrClosed, and the contexts of live leases
// end with cause ErrClosed. Close waits up to 5 s for the holders to release their leases
// and for claims to be undone. A lease that is still held then is not renewed any more and
// expires. The error counts these leases and whatever else is left. The store stays open.
//
// Release before Close: a caller that closes the client while it holds a lease itself waits those
// 5 s for nothing.
func (c *Client) Close() error {
	c.close.Do(func() {
		c.closed.Store(true)
		close(c.done)
		deadline := time.Now().Add(closeGrace)
		held := c.renewer.stop(deadline)
		calls := c.drain(deadline)
		undone, why := c.undoer.flush(deadline)
		c.waiters.stop()
		var errs []error
		if held > 0 {
			errs = append(errs, fmt.Errorf("dibs: closed while %d leases were held; they expire within their TTL", held))
		}
		if calls > 0 {
			errs = append(errs, fmt.Errorf("dibs: closed while %d calls to the store had no answer; what they get expires within its TTL", calls))
		}
		if undone > 0 {
			errs = append(errs, fmt.Errorf("dibs: closed while %d claims could not be undone; they expire within their TTL: %w", undone, why))
		}
		c.closing = errors.Join(errs...)
	})
	return c.closing
}

// enter counts a call that may leave something to be undone. leave counts it as over: what
// it got is known to the renewer, the undoer or a batch.
func (c *Client) enter() { c.active.Add(1) }

func (c *Client) leave() {
	if c.active.Add(-1) == 0 && c.closed.Load() {
		select {
		case c.drained <- struct{}{}:
		default:
		}
	}
}

// drain waits, at most until the deadline, for the calls under way and for their batches.
// After it the undoer knows everything that it has to undo, and only the undoer calls the
// store. drain returns how many calls are left.
func (c *Client) drain(deadline time.Time) int {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for c.active.Load() > 0 {
		select {
		case <-c.drained:
		case <-timer.C:
			return int(c.active.Load())
		}
	}
	for _, idle := range [...]<-chan struct{}{c.claims.Idle(), c.settles.Idle()} {
		select {
		case <-idle:
			continue // even when the deadline has passed
		default:
		}
		select {
		case <-idle:
		case <-timer.C:
			return 1
		}
	}
	return 0
}
