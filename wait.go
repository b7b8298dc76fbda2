package dibs

import (
	"context"
	"errors"
	"time"
)

// How often a waiter asks whether its turn has come, and how long its place
// stands without being asked for. Wake-ups make the asking rare to matter;
// they may be lost, so it is never left out. Those far back, where wake-ups are to
// be had, ask less often.
const (
	askNear  = PushedTTL / 2
	askFar   = 2 * time.Second
	stayNear = stayAsks * askNear
	stayFar  = stayAsks * askFar
	stayAsks = 3  // as many times a place can be asked for before it runs out
	farAhead = 64 // from this many places ahead a waiter is far back

	// Without wake-ups, the next in line asks every so often; the one behind it
	// half as often, and so on.
	pollMin = 2 * time.Millisecond
	pollMax = 50 * time.Millisecond
)

// errWaitOver: the limit of the wait is over.
var errWaitOver = errors.New("dibs: the wait is over")

// await asks again and again until the bid is granted, refused or given up.
// Wake-ups say when asking pays, or are the grant. a is the last answer, to what
// was sent at heard.
func (c *Client) await(ctx context.Context, b bid, a Answer, heard time.Time, limit time.Duration) (*Lease, error) {
	start := time.Now()
	waiting := ctx
	if limit != anyWait {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeoutCause(ctx, limit, errWaitOver)
		defer cancel()
	}
	woken := c.waiters.enter(b.Token)
	defer c.waiters.leave(b.Token)
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
			err = &HeldError{Key: b.Key, Left: a.Left, Ahead: a.Ahead, Waited: time.Since(start)}
		}
		return c.giveUp(b, err)
	}
	for {
		var interval, stay time.Duration
		interval, stay, poll = c.waiters.pace(a, poll)
		// The place lasts for as long as it was asked for last.
		interval = min(interval, b.Stay/stayAsks)
		b.Stay = stay
		again.Reset(interval)
		select {
		case told := <-woken:
			if c.believes(told, b, a, heard) {
				return c.take(ctx, b, told, heard)
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
		case err != nil && time.Since(heard) >= keepPatience:
			return nil, c.giveUp(b, &StoreError{Op: "claim", Err: err})
		case err != nil, errors.Is(next.Err, ErrBusy):
			if a.Left > 0 { // and not 0: that would say that nobody holds the key
				a.Left = max(a.Left, askNear)
			}
			continue
		case next.Err != nil:
			return nil, c.giveUp(b, next.Err)
		case next.State == Granted:
			return c.grant(ctx, b, next, sent)
		case next.State != Held:
			return nil, c.giveUp(b, refusal(b.Claim, next))
		}
		a, heard = next, sent
	}
}

// take takes a grant that was told.
func (c *Client) take(ctx context.Context, b bid, told Answer, heard time.Time) (*Lease, error) {
	if b.detach {
		ctx = context.WithoutCancel(ctx)
	}
	return c.keep(newToldLease(ctx, c, b, told, heard), b)
}

// believes reports whether a grant that was told can be taken without asking: it is
// not an old one that came late, and enough of its time is left.
func (c *Client) believes(told Answer, b bid, a Answer, heard time.Time) bool {
	return told.State == Granted && told.Fence > a.Fence && time.Until(toldUntil(b, heard)) > PushedTTL/4
}

// giveUp leaves the queue, unless the place was reserved, and passes the reason
// on.
func (c *Client) giveUp(b bid, reason error) error {
	c.undo(b)
	return reason
}
