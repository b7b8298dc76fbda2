package dibs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/internal/pace"
	"github.com/dibs-go/dibs/store"
)

// waiters are the waiters of this process, by token.
type waiters struct {
	notified bool // the store wakes waiters
	stop     func()

	mu    sync.Mutex
	woken map[store.Token]chan store.Answer
	early map[store.Token]store.Answer // wake-ups of tokens that have a place and did not enter yet
}

// maxEarly bounds the wake-ups kept for waiters that are about to enter.
const maxEarly = 1024

func newWaiters(s Store) *waiters {
	w := &waiters{
		stop:  func() {},
		woken: make(map[store.Token]chan store.Answer),
		early: make(map[store.Token]store.Answer),
	}
	if n, ok := s.(store.Notifier); ok {
		w.notified = true
		w.stop = n.Notify(w.wake)
	}
	return w
}

// enter returns the channel on which the token's wake-ups arrive: its grant, or the zero
// Answer if it should ask.
func (w *waiters) enter(t store.Token) <-chan store.Answer {
	woken := make(chan store.Answer, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, ok := w.early[t]; ok {
		delete(w.early, t)
		woken <- a
	}
	w.woken[t] = woken
	return woken
}

func (w *waiters) leave(t store.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.woken, t)
}

// wake is called by the store's Notifier. The last wake-up counts.
func (w *waiters) wake(t store.Token, a store.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	woken, ok := w.woken[t]
	if !ok {
		if len(w.early) >= maxEarly {
			clear(w.early) // a waiter that loses its wake-up asks soon anyway
		}
		w.early[t] = a
		return
	}
	select {
	case <-woken:
	default:
	}
	woken <- a
}

// errWaitOver: the limit of the wait is over.
var errWaitOver = errors.New("dibs: the wait is over")

// await asks until the request is granted, refused or given up. A wake-up says when to
// ask, or is the grant. a is the last answer, to what was sent at that moment.
func (c *Client) await(ctx context.Context, r request, a store.Answer, sent time.Time, limit time.Duration) (*Lease, error) {
	start := time.Now()
	waiting := ctx
	if limit != anyWait {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeoutCause(ctx, limit, errWaitOver)
		defer cancel()
	}
	woken := c.waiters.enter(r.Token)
	defer c.waiters.leave(r.Token)
	var poll time.Duration
	again := time.NewTimer(0)
	defer again.Stop()
	giveUp := func(reason error) (*Lease, error) {
		c.undo(r)
		return nil, reason
	}
	over := func() (*Lease, error) {
		select {
		case <-c.done:
			return giveUp(ErrClosed)
		default:
		}
		err := context.Cause(waiting)
		if err == errWaitOver {
			err = &HeldError{Key: r.Key, Left: a.Left, Ahead: a.Ahead, Waited: time.Since(start)}
		}
		return giveUp(err)
	}
	for {
		var interval time.Duration
		interval, poll = pace.Next(c.waiters.notified, a.Ahead, a.Left, poll)
		stay := pace.Stay(interval)
		// The place lasts for the Stay of the last question.
		interval = min(interval, r.Stay/pace.Asks)
		r.Stay = stay
		again.Reset(interval)
		select {
		case pushed := <-woken:
			if usable(pushed, r, a, sent) {
				return c.grantPushed(r, pushed, sent)
			}
		case <-again.C:
		case <-waiting.Done():
			return over()
		case <-c.done:
			return over()
		}
		next, asked, err := c.claims.Do(waiting, c.done, r.Claim, c.lateOf(r))
		switch {
		case errors.Is(err, batch.ErrGaveUp):
			// The claim may be under way. It is undone when it is answered, so a grant that
			// was pushed meanwhile cannot be used.
			return over()
		case err != nil && time.Since(sent) >= keepPatience:
			return giveUp(&StoreError{Op: "claim", Err: err})
		case err != nil, errors.Is(next.Err, ErrBusy):
			if a.Left > 0 { // and not 0, which says that the key has no lease
				a.Left = max(a.Left, pace.Near)
			}
			continue
		case next.Err != nil:
			return giveUp(next.Err)
		case next.State == store.Granted:
			return c.grant(r, next, asked)
		case next.State != store.Held:
			return giveUp(refusal(r.Claim, next))
		}
		a, sent = next, asked
	}
}

// usable reports whether the waiter can begin with a pushed grant without asking: it is not
// an old one that arrived late, and enough of its time is left.
func usable(pushed store.Answer, r request, a store.Answer, sent time.Time) bool {
	return pushed.State == store.Granted && pushed.Fence > a.Fence && time.Until(pushedUntil(r, sent)) > store.PushedTTL/4
}
