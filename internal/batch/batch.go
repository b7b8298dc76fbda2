// Package batch turns single calls into calls on slices without delaying any: a call that is
// alone leaves at once, and calls that arrive while one is under way form the next.
package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// DefaultSize is the default of Options.Size.
const DefaultSize = 512

// Why there is no answer.
var (
	// ErrGaveUp: the caller stopped waiting for the answer.
	ErrGaveUp = errors.New("dibs: gave up waiting for the store's answer")
	// ErrNotSent: the caller stopped waiting before the call was sent. It is an ErrGaveUp.
	ErrNotSent = fmt.Errorf("%w to a call that was not sent", ErrGaveUp)
)

// Options say how calls are made. The zero value means the defaults.
type Options struct {
	// Direct makes every call on its own, at once, on the caller's goroutine.
	Direct bool
	// Immediate says that a call never waits for anything, so it needs no time limit.
	Immediate bool
	// Size is how many elements one call may have. Default: DefaultSize.
	Size int
	// Parallel is how many calls may be under way. Default: 1.
	Parallel int
}

// A Batcher makes the calls of one kind.
type Batcher[Q, A any] struct {
	ctx      context.Context
	send     func(context.Context, []Q, []A) error
	timeout  time.Duration
	direct   bool
	instant  bool
	size     int
	parallel int
	singles  sync.Pool // of *single[Q, A]
	calls    sync.Pool // of *call[Q, A], with nothing in them

	mu      sync.Mutex
	queue   []*call[Q, A]
	running int
	rest    chan struct{} // closed when running is 0; nil unless a caller of Idle waits
}

// A single is the storage of a direct call.
type single[Q, A any] struct {
	q [1]Q
	a [1]A
}

// A call is one element on its way through a batch.
type call[Q, A any] struct {
	q    Q
	a    A
	sent time.Time
	err  error
	done chan struct{} // has an element when it is answered

	// late gets the answer if the caller has stopped waiting. Under the batcher's lock.
	late func(q Q, a A, err error)
}

// New returns a Batcher whose batches run under ctx, each for at most the timeout.
func New[Q, A any](ctx context.Context, o Options, timeout time.Duration, send func(context.Context, []Q, []A) error) *Batcher[Q, A] {
	return &Batcher[Q, A]{
		ctx:      ctx,
		send:     send,
		timeout:  timeout,
		direct:   o.Direct,
		instant:  o.Immediate,
		size:     cmp.Or(o.Size, DefaultSize),
		parallel: cmp.Or(o.Parallel, 1),
	}
}

// Do sends q and returns its answer and the moment just before it was sent. If ctx or stop
// ends first, Do returns ErrGaveUp, and late gets the answer. It returns ErrNotSent if q was
// not sent by then, and then q never is.
func (b *Batcher[Q, A]) Do(ctx context.Context, stop <-chan struct{}, q Q, late func(Q, A, error)) (A, time.Time, error) {
	if b.direct {
		return b.alone(ctx, q)
	}
	c, _ := b.calls.Get().(*call[Q, A])
	if c == nil {
		c = &call[Q, A]{done: make(chan struct{}, 1)}
	}
	c.q = q
	b.mu.Lock()
	b.queue = append(b.queue, c)
	if b.running < b.parallel {
		b.running++
		go b.run()
	}
	b.mu.Unlock()
	select {
	case <-c.done:
		return b.answer(c)
	case <-ctx.Done():
	case <-stop:
	}
	return b.leave(c, late)
}

// DoAll sends elements and fills in their answers. One that is alone is sent by Do, in a batch with those
// of other callers. Several are sent at once, at most Options.Size in a call. After an error none is sent
// any more.
func (b *Batcher[Q, A]) DoAll(ctx context.Context, qs []Q, as []A) (err error) {
	if len(qs) == 1 {
		as[0], _, err = b.Do(ctx, nil, qs[0], nil)
		return err
	}
	for len(qs) > 0 && err == nil {
		n := min(len(qs), b.size)
		ctx, cancel := context.WithTimeout(ctx, b.timeout)
		err = b.send(ctx, qs[:n:n], as[:n:n])
		cancel()
		qs, as = qs[n:], as[n:]
	}
	return err
}

// leave takes a call back whose caller does not wait any more.
func (b *Batcher[Q, A]) leave(c *call[Q, A], late func(Q, A, error)) (A, time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.queue, c); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
		return c.a, c.sent, ErrNotSent
	}
	select {
	case <-c.done: // it was answered after all
		return b.answer(c)
	default:
		c.late = late
		return c.a, c.sent, ErrGaveUp
	}
}

// answer returns the answer of a call that only its caller knows any more.
func (b *Batcher[Q, A]) answer(c *call[Q, A]) (A, time.Time, error) {
	a, sent, err := c.a, c.sent, c.err
	*c = call[Q, A]{done: c.done}
	b.calls.Put(c)
	return a, sent, err
}

// Idle returns a channel that is closed when no batch is under way and every late answer
// was passed on.
func (b *Batcher[Q, A]) Idle() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rest == nil {
		b.rest = make(chan struct{})
	}
	rest := b.rest
	b.closeIfIdle()
	return rest
}

func (b *Batcher[Q, A]) closeIfIdle() {
	if b.running == 0 && b.rest != nil {
		close(b.rest)
		b.rest = nil
	}
}

// alone calls the store on the caller's own goroutine.
func (b *Batcher[Q, A]) alone(ctx context.Context, q Q) (a A, sent time.Time, err error) {
	s, _ := b.singles.Get().(*single[Q, A])
	if s == nil {
		s = new(single[Q, A])
	}
	s.q[0] = q
	if !b.instant {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.timeout)
		defer cancel()
	}
	sent = time.Now()
	err = b.send(ctx, s.q[:], s.a[:])
	a = s.a[0]
	*s = single[Q, A]{}
	b.singles.Put(s)
	return a, sent, err
}

// run sends batches until nothing is queued.
func (b *Batcher[Q, A]) run() {
	var qs []Q
	var as []A
	var calls, late []*call[Q, A]
	for {
		// Callers that can run now, because they were just answered, ask first: their
		// next calls join this batch.
		runtime.Gosched()
		b.mu.Lock()
		if len(b.queue) == 0 {
			b.running--
			b.closeIfIdle()
			b.mu.Unlock()
			return
		}
		n := min(len(b.queue), b.size)
		calls = append(calls[:0], b.queue[:n]...)
		b.queue = slices.Delete(b.queue, 0, n)
		b.mu.Unlock()

		qs = qs[:0]
		for _, c := range calls {
			qs = append(qs, c.q)
		}
		as = slices.Grow(as[:0], n)[:n]
		clear(as)
		sent := time.Now()
		ctx, cancel := context.WithTimeout(b.ctx, b.timeout)
		err := b.send(ctx, qs, as)
		cancel()

		b.mu.Lock()
		for i, c := range calls {
			c.a, c.sent, c.err = as[i], sent, err
			if c.late != nil {
				late = append(late, c)
			} else {
				c.done <- struct{}{} // from now on it belongs to its caller
			}
		}
		b.mu.Unlock()
		for _, c := range late {
			c.late(c.q, c.a, c.err)
		}
		clear(qs) // so that the batch's data can be freed
		clear(calls)
		clear(late)
		late = late[:0]
	}
}
