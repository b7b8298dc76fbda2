package dibs

import (
	"context"
	"time"
)

// How often Near looks: from lookMin on, after a while every lookMax; where places
// before it go, in half of the time that the others will take at that pace.
const (
	lookMin = 5 * time.Millisecond
	lookMax = Turn / 2
)

// Near waits until at most so many places come before p, or until p does not stand
// as a reserved place any more: then there is nothing to wait for. At 0 it waits
// until p is next, and at -1 until its turn has come. It takes nothing and leaves p
// as it is. What it says may be over by the time it is read.
//
// It returns the cause with which ctx ended, ErrClosed, and ErrStore when the store
// did not answer for a while.
func (c *Client) Near(ctx context.Context, p Place, places int, o *AcquireOptions) error {
	claim, err := c.newClaim(p.Key.Name, o)
	if err != nil {
		return err
	}
	claim.Key, claim.Mode, claim.Redeems = p.Key, Look, p.Token
	woken := c.waiters.enter(p.Token)
	defer c.waiters.leave(woken, p.Token)
	var pace pace
	heard := time.Now()
	for {
		a, _, err := c.ask(ctx, bid{Claim: claim})
		switch {
		case err == nil && (a.State != Held || !a.Queued || a.Ahead <= places):
			return nil
		case err == nil:
			heard = time.Now()
		case ctx.Err() != nil || c.closed.Load() || time.Since(heard) > waitPatience:
			return err
		}
		timer := time.NewTimer(pace.next(a.Ahead, places))
		select {
		case <-woken:
		case <-timer.C:
		case <-ctx.Done():
		case <-c.done:
		}
		timer.Stop()
	}
}

// pace is how fast the places before one go.
type pace struct {
	ahead int
	since time.Time     // when ahead was first seen
	each  time.Duration // how long one place takes; 0 while it is not known
	wait  time.Duration
}

// next returns when to look again, so many being ahead.
func (p *pace) next(ahead, near int) time.Duration {
	now := time.Now()
	switch {
	case p.since.IsZero():
		p.ahead, p.since = ahead, now
	case ahead < p.ahead:
		p.each = now.Sub(p.since) / time.Duration(p.ahead-ahead)
		p.ahead, p.since, p.wait = ahead, now, 0
	}
	p.wait = min(max(lookMin, p.wait+p.wait/2), lookMax)
	return min(max(p.wait, p.each*time.Duration(ahead-near)/2), lookMax)
}
