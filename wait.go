package dibs

import (
	"cmp"
	"context"
	"errors"
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
	// Who redeems a place is woken by the place's token.
	token := cmp.Or(b.Redeems, b.Token)
	woken := c.waiters.enter(token)
	defer func() { c.waiters.leave(token, woken) }()
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
		switch {
		case err == errWaitOver && a.State == PermitsDiffer:
			err = &PermitsError{Key: b.Key, Want: b.Permits, Have: a.Permits, Waited: time.Since(start)}
		case err == errWaitOver:
			err = &HeldError{Key: b.Key, Left: a.Left, Ahead: a.Ahead, Idle: a.Idle, Waited: time.Since(start)}
		}
		return c.giveUp(b, err)
	}
	for {
		var interval, place time.Duration
		interval, place, poll = c.waiters.pace(a, poll)
		if b.Mode == Queue {
			// The place that stands is the one that was asked for last.
			interval = min(interval, b.Place/placeAsks)
			b.Place = place
		}
		again.Reset(interval)
		granted := func(word Answer) bool { return c.believes(word, b, a, heard) }
		select {
		case word := <-woken:
			if granted(word) {
				return c.take(ctx, b, word, heard)
			}
		case <-again.C:
		case <-waiting.Done():
			return nil, over()
		case <-c.done:
			return nil, over()
		}
		next, told, sent, err := c.askUnlessTold(waiting, b, woken, granted)
		switch {
		case told.State == Granted:
			return c.take(ctx, b, told, heard)
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
		case next.State == PermitsDiffer:
			// No place is to be had until those have gone who agreed on their number.
		case next.State != Held:
			return nil, c.giveUp(b, refusal(b.Claim, next))
		case !next.Queued:
			// The place stands no more: join at the end.
			b.Mode, b.Place, b.Hold, b.Redeems = Queue, placeNear, 0, Token{}
			c.waiters.leave(token, woken)
			token = b.Token
			woken = c.waiters.enter(token)
			next.Left, next.Ahead = 0, 0
		}
		a, heard = next, sent
	}
}

// askUnlessTold asks the store. It does not when a grant that can be taken is told
// before the question is sent, which waits while other questions are under way: told is
// that grant. What else it hears meanwhile it leaves for after the answer.
func (c *Client) askUnlessTold(ctx context.Context, b bid, woken chan Answer, granted func(word Answer) bool) (a, told Answer, sent time.Time, err error) {
	if c.claims.direct {
		a, sent, err = c.claims.do(ctx, c.done, b.Claim, c.orphan(b))
		return a, told, sent, err
	}
	question := c.claims.post(b.Claim)
	var unread []Answer
	defer func() { c.waiters.putBack(woken, unread) }()
	for {
		select {
		case word := <-woken:
			if granted(word) && c.claims.withdraw(question) {
				return a, word, sent, nil
			}
			unread = append(unread, word)
			continue
		case <-question.done:
			a, sent, err = c.claims.answer(question)
		case <-ctx.Done():
			a, sent, err = c.claims.await(ctx, c.done, question, c.orphan(b))
		case <-c.done:
			a, sent, err = c.claims.await(ctx, c.done, question, c.orphan(b))
		}
		return a, told, sent, err
	}
}

// take takes a grant that was told.
func (c *Client) take(ctx context.Context, b bid, told Answer, heard time.Time) (*Lease, error) {
	if b.detach {
		ctx = context.WithoutCancel(ctx)
	}
	return c.keep(newToldLease(ctx, c, b, told, heard), b)
}

// believes reports whether a grant that was told can be taken without asking: it
// is the bid's (a place that is redeemed is told none), not an old one that came
// late, as any is to a token without a place, and enough of its time is left.
func (c *Client) believes(word Answer, b bid, a Answer, heard time.Time) bool {
	return word.State == Granted && b.Redeems.IsZero() && a.State == Held && word.Fence > a.Fence &&
		time.Until(toldUntil(b, heard)) > Turn/4
}

// giveUp leaves the queue, unless the place was reserved, and passes the reason
// on.
func (c *Client) giveUp(b bid, reason error) error {
	c.undo(b)
	return reason
}
