package dibs

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/store"
)

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
		interval, poll = backoff.Next(c.waiters.notified, a.Ahead, a.Left, poll)
		placeTTL := backoff.PlaceTTL(interval)
		// The place lasts for the PlaceTTL of the last question.
		interval = min(interval, r.PlaceTTL/backoff.Asks)
		r.PlaceTTL = placeTTL
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
				a.Left = max(a.Left, backoff.Near)
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
