package dibs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// How often a waiter asks whether its turn has come, and how long its place
// stands without being asked for. Wake-ups make the asking rare to matter;
// they may be lost, so it is never left out. Those far back, where wake-ups are to
// be had, ask less often.
const (
	askNear   = Turn / 2
	askFar    = 2 * time.Second
	placeNear = placeAsks * askNear
	placeFar  = placeAsks * askFar
	placeAsks = 3  // as many times a place can be asked for before it runs out
	farAhead  = 64 // from this many places ahead a waiter is far back

	// Without wake-ups, the next in line asks every so often; the one behind it
	// half as often, and so on.
	pollMin = 2 * time.Millisecond
	pollMax = 50 * time.Millisecond
)

// waitPatience is how long a waiter with a place puts up with a store that
// does not answer, from its last answer on.
const waitPatience = 10 * time.Second

// errWaitOver: the limit of the wait is over.
var errWaitOver = errors.New("dibs: the wait is over")

// await asks again and again until the bid is granted, refused or given up.
// Wake-ups say when asking pays, or are the grant. a is the last answer, to what
// was sent at heard.
func (c *Client) await(ctx context.Context, b bid, a Answer, heard time.Time, limit time.Duration) (*Lease, error) {
	start := time.Now()
	waiting := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeoutCause(ctx, limit, errWaitOver)
		defer cancel()
	}
	woken := c.waiters.enter(b.Token, b.Redeems)
	defer c.waiters.leave(woken, b.Token, b.Redeems)
	poll := pollMin
	again := time.NewTimer(0)
	defer again.Stop()
	over := func() error {
		select {
		case <-c.done:
			return c.giveUp(b, ErrClosed)
		default:
		}
		err := context.Cause(waiting)
		if err == errWaitOver {
			err = &HeldError{Key: b.Key, Left: a.Left, Ahead: a.Ahead, Idle: a.Idle, Placed: a.Queued && !b.Redeems.IsZero(), Waited: time.Since(start)}
		}
		return c.giveUp(b, err)
	}
	for fresh := true; ; {
		if fresh && b.stands != nil && a.Queued {
			b.stands(Standing{Waits: true, Placed: !b.Redeems.IsZero(), Ahead: a.Ahead, Idle: a.Idle})
		}
		fresh = false
		var interval, place time.Duration
		interval, place, poll = c.waiters.pace(a, poll)
		// The place that stands is the one that was asked for last; so it is with the
		// wait at a reserved one.
		interval = min(interval, b.Place/placeAsks)
		b.Place = place
		again.Reset(interval)
		select {
		case w := <-woken:
			if c.believes(w, b, a, heard) {
				if b.detach {
					ctx = context.WithoutCancel(ctx)
				}
				return c.keep(newToldLease(ctx, c, b, w.answer, heard), b)
			}
		case <-again.C:
		case <-waiting.Done():
			return nil, over()
		case <-c.done:
			return nil, over()
		}
		next, sent, err := c.claims.do(waiting, c.done, b.Claim, c.orphan(b))
		switch {
		case errors.Is(err, errGaveUp):
			// The claim may be under way, and is undone when it is answered. So
			// nothing that was told meanwhile can be taken.
			return nil, over()
		case err != nil && time.Since(heard) < waitPatience:
			a.Left = 0
			continue
		case err != nil:
			return nil, c.giveUp(b, &StoreError{Op: "claim", Err: err})
		case errors.Is(next.Err, ErrBusy):
			a.Left = 0
			continue
		case next.Err != nil:
			return nil, c.giveUp(b, next.Err)
		case next.State == Granted:
			return c.grant(ctx, b, next, sent)
		case next.State != Held:
			return nil, c.giveUp(b, refusal(b.Claim, next))
		case !next.Queued:
			// The place stands no more: join at the end.
			b.Mode, b.Place, b.Hold, b.Redeems = Queue, placeNear, 0, Token{}
			next.Left, next.Ahead = 0, 0
		}
		a, heard, fresh = next, sent, true
	}
}

// believes reports whether a grant that was told can be taken without asking: it
// is this token's (a redeemer hears of its place's too), not an old one that came
// late, and enough of its time is left.
func (c *Client) believes(w word, b bid, a Answer, heard time.Time) bool {
	return w.answer.State == Granted && w.token == b.Token && w.answer.Fence > a.Fence &&
		time.Until(toldUntil(b, heard)) > Turn/4
}

// giveUp leaves the queue, unless the place was reserved, and passes the reason
// on.
func (c *Client) giveUp(b bid, reason error) error {
	c.undo(b)
	return reason
}

// waiters knows who waits in this process, by token.
type waiters struct {
	notified bool
	stop     func()

	mu    sync.Mutex
	woken map[Token][]chan word // several redeem one place, at worst
	// early holds wake-ups for tokens that have a place but did not enter yet.
	early map[Token]Answer
}

// word is a wake-up to a token: its grant, or that it should ask.
type word struct {
	token  Token
	answer Answer // Granted, or zero
}

// maxEarly bounds the wake-ups kept for waiters that are about to enter.
const maxEarly = 1024

func newWaiters(store Store) *waiters {
	w := &waiters{
		stop:  func() {},
		woken: make(map[Token][]chan word),
		early: make(map[Token]Answer),
	}
	switch n := store.(type) {
	case GrantNotifier:
		w.notified = true
		w.stop = n.NotifyGrants(w.wake)
	case Notifier:
		w.notified = true
		w.stop = n.Notify(func(t Token) { w.wake(t, Answer{}) })
	}
	return w
}

// enter returns the channel on which the wake-ups of these tokens arrive; zero
// ones do not count.
func (w *waiters) enter(tokens ...Token) chan word {
	woken := make(chan word, len(tokens)) // none is to miss its own for another's
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range tokens {
		if t.IsZero() {
			continue
		}
		if a, ok := w.early[t]; ok {
			delete(w.early, t)
			nudge(woken, word{t, a})
		}
		w.woken[t] = append(w.woken[t], woken)
	}
	return woken
}

func (w *waiters) leave(woken chan word, tokens ...Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range tokens {
		all := slices.DeleteFunc(w.woken[t], func(c chan word) bool { return c == woken })
		if len(all) > 0 {
			w.woken[t] = all
		} else {
			delete(w.woken, t)
		}
	}
}

// leaveUnread is leave for one who comes again: what it has not read is kept for it.
func (w *waiters) leaveUnread(woken chan word, tokens ...Token) {
	w.leave(woken, tokens...)
	for {
		select {
		case unread := <-woken:
			w.wake(unread.token, unread.answer)
		default:
			return
		}
	}
}

// nudge leaves a wake-up, if there is room, and a grant in the place of any.
func nudge(woken chan word, w word) {
	select {
	case woken <- w:
		return
	default:
	}
	if w.answer.State != Granted {
		return
	}
	select {
	case <-woken:
	default:
	}
	woken <- w
}

// wake is what the store's Notifier calls.
func (w *waiters) wake(t Token, a Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.woken[t]
	if len(all) == 0 {
		if len(w.early) >= maxEarly {
			clear(w.early) // hints: whoever loses one asks soon anyway
		}
		w.early[t] = a
		return
	}
	for _, woken := range all {
		nudge(woken, word{t, a})
	}
}

// pace says when a waiter with this answer should ask again, how long its place
// should stand, and how long to wait after that where nothing wakes it.
func (w *waiters) pace(a Answer, poll time.Duration) (interval, place, nextPoll time.Duration) {
	interval, place = askNear, placeNear
	if w.notified && a.Ahead >= farAhead {
		interval, place = askFar, placeFar
	}
	if a.Ahead == 0 && a.Left > 0 {
		// What stands in the way can run out then.
		interval = min(interval, max(a.Left+time.Millisecond, pollMin))
	}
	if !w.notified {
		interval = min(interval, poll*time.Duration(1+min(a.Ahead, farAhead)))
		poll = min(poll+poll/2, pollMax)
	}
	return interval, place, poll
}
