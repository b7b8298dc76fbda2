package dibs

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
)

// defaultBatch is the most elements that one store call has.
const defaultBatch = 512

// errGaveUp: the caller stopped waiting for the answer.
var errGaveUp = errors.New("dibs: gave up waiting for the store's answer")

// A batcher turns single calls into calls on slices without delaying any: a
// call that finds no batch under way leaves at once, and the calls that arrive
// while one is under way form the next.
type batcher[Q, A any] struct {
	call     func(context.Context, []Q, []A) error
	timeout  time.Duration
	direct   bool
	instant  bool
	size     int
	parallel int
	singles  sync.Pool // of *single[Q, A]
	tickets  sync.Pool // of *ticket[Q, A], with nothing in them

	mu      sync.Mutex
	queue   []*ticket[Q, A]
	running int
	rest    chan struct{} // closed when nothing runs any more; nil when nobody waits
}

// A single is the storage of a direct call.
type single[Q, A any] struct {
	q [1]Q
	a [1]A
}

// A ticket is one call on its way through a batch.
type ticket[Q, A any] struct {
	q    Q
	a    A
	sent time.Time
	err  error
	done chan struct{} // has an element when it is answered

	// Set under the batcher's lock when nobody waits for the ticket any more;
	// called with what became of it.
	orphaned func(q Q, a A, err error)
}

func newBatcher[Q, A any](b Batching, timeout time.Duration, call func(context.Context, []Q, []A) error) *batcher[Q, A] {
	return &batcher[Q, A]{
		call:     call,
		timeout:  timeout,
		direct:   b.Direct,
		instant:  b.Immediate,
		size:     cmp.Or(b.Size, defaultBatch),
		parallel: cmp.Or(b.Parallel, 1),
	}
}

// do sends q and returns its answer and the moment just before it was sent.
// When ctx or stop ends first, it returns errGaveUp; a q that was not sent by
// then never is, and for one that was, orphaned is called with its answer.
func (b *batcher[Q, A]) do(ctx context.Context, stop <-chan struct{}, q Q, orphaned func(Q, A, error)) (A, time.Time, error) {
	if b.direct {
		return b.alone(ctx, q)
	}
	return b.await(ctx, stop, b.post(q), orphaned)
}

// post has q go with the next batch. Its answer is to be awaited, or it is withdrawn.
func (b *batcher[Q, A]) post(q Q) *ticket[Q, A] {
	t := b.ticket(q)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.send(t)
	return t
}

// withdraw takes back what was not sent yet, and reports whether it could.
func (b *batcher[Q, A]) withdraw(t *ticket[Q, A]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unqueue(t)
}

// unqueue is withdraw for callers that have the lock.
func (b *batcher[Q, A]) unqueue(t *ticket[Q, A]) bool {
	i := slices.Index(b.queue, t)
	if i < 0 {
		return false
	}
	b.queue = slices.Delete(b.queue, i, i+1)
	return true
}

// send has a ticket go with the next batch. The caller has the lock.
func (b *batcher[Q, A]) send(t *ticket[Q, A]) {
	b.queue = append(b.queue, t)
	if b.running < b.parallel {
		b.running++
		go b.run()
	}
}

// await returns a ticket's answer, as do does.
func (b *batcher[Q, A]) await(ctx context.Context, stop <-chan struct{}, t *ticket[Q, A], orphaned func(Q, A, error)) (A, time.Time, error) {
	select {
	case <-t.done:
		return b.answer(t)
	case <-ctx.Done():
	case <-stop:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unqueue(t) {
		return t.a, t.sent, errGaveUp
	}
	select {
	case <-t.done: // it was answered after all
		return b.answer(t)
	default:
		t.orphaned = orphaned
		return t.a, t.sent, errGaveUp
	}
}

// ticket returns a ticket for q.
func (b *batcher[Q, A]) ticket(q Q) *ticket[Q, A] {
	t, _ := b.tickets.Get().(*ticket[Q, A])
	if t == nil {
		t = &ticket[Q, A]{done: make(chan struct{}, 1)}
	}
	t.q = q
	return t
}

// answer returns what an answered ticket got. Nobody else knows it any more.
func (b *batcher[Q, A]) answer(t *ticket[Q, A]) (A, time.Time, error) {
	a, sent, err := t.a, t.sent, t.err
	*t = ticket[Q, A]{done: t.done}
	b.tickets.Put(t)
	return a, sent, err
}

// idle returns a channel that is closed when no batch is under way, and nothing
// of one is left to be told.
func (b *batcher[Q, A]) idle() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rest == nil {
		b.rest = make(chan struct{})
	}
	rest := b.rest
	if b.running == 0 {
		close(rest)
		b.rest = nil
	}
	return rest
}

// alone calls the store on the caller's own goroutine.
func (b *batcher[Q, A]) alone(ctx context.Context, q Q) (a A, sent time.Time, err error) {
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
	err = b.call(ctx, s.q[:], s.a[:])
	a = s.a[0]
	*s = single[Q, A]{}
	b.singles.Put(s)
	return a, sent, err
}

// run sends batches until nothing is queued.
func (b *batcher[Q, A]) run() {
	var qs []Q
	var as []A
	var tickets, orphans []*ticket[Q, A]
	for {
		// Those who can run now, such as those who were just answered, ask first:
		// what they send comes along. With nobody there it takes no time.
		runtime.Gosched()
		b.mu.Lock()
		if len(b.queue) == 0 {
			b.running--
			if b.running == 0 && b.rest != nil {
				close(b.rest)
				b.rest = nil
			}
			b.mu.Unlock()
			return
		}
		n := min(len(b.queue), b.size)
		tickets = append(tickets[:0], b.queue[:n]...)
		b.queue = slices.Delete(b.queue, 0, n)
		b.mu.Unlock()

		qs = qs[:0]
		for _, t := range tickets {
			qs = append(qs, t.q)
		}
		as = slices.Grow(as[:0], n)[:n]
		clear(as)
		sent := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
		err := b.call(ctx, qs, as)
		cancel()

		b.mu.Lock()
		for i, t := range tickets {
			t.a, t.sent, t.err = as[i], sent, err
			if t.orphaned != nil {
				orphans = append(orphans, t)
			} else {
				t.done <- struct{}{} // and it is another's
			}
		}
		b.mu.Unlock()
		for _, t := range orphans {
			t.orphaned(t.q, t.a, t.err)
		}
		clear(qs) // do not keep what the batch pointed to
		clear(tickets)
		clear(orphans)
		orphans = orphans[:0]
	}
}
