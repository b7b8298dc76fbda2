package dibs

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// How often Near looks: from lookMin on, after a while every lookMax; where places
// before it go, in half of the time that the others will take at that pace.
const (
	lookMin = 5 * time.Millisecond
	lookMax = Turn / 2
)

// Standing is how a place stands in its key's queue: a reserved one, or that of somebody
// who waits.
type Standing struct {
	// Waits is false when there is nothing to wait for: the place's turn has come, or
	// it does not stand as a reserved place any more.
	Waits bool
	// Ahead is how many places at most come before it; 0 when it is next.
	Ahead int
	// Placed is that it is the reserved place that waits, and not another one at the end
	// of the queue in its stead.
	Placed bool
	// Idle says that nobody holds the key, and that a reserved place which nobody has
	// redeemed is what comes before it.
	Idle bool
}

// Standing tells how a reserved place stands. It takes nothing and leaves the place
// as it is. Of the options, Permits counts. The errors are ErrClosed, ErrStore or the
// cause with which ctx ended.
func (c *Client) Standing(ctx context.Context, p Place, o *AcquireOptions) (Standing, error) {
	claim, err := c.lookAt(p, o)
	if err != nil {
		return Standing{}, err
	}
	a, _, err := c.ask(ctx, bid{Claim: claim})
	return standing(a), err
}

// Standings is Standing for several places. What it tells of those of one key was so at
// one moment, with a store that answers the claims of one call at one, if they fit into
// one (Batching.Size). If one of them cannot be told, all are asked for again, for a
// second. The errors are those of Standing.
func (c *Client) Standings(ctx context.Context, places []Place, o *AcquireOptions) ([]Standing, error) {
	claims := make([]Claim, len(places))
	for i, p := range places {
		var err error
		if claims[i], err = c.lookAt(p, o); err != nil {
			return nil, err
		}
	}
	first := time.Now()
	for backoff := askBackoff; ; backoff *= 2 {
		if c.closed.Load() {
			return nil, ErrClosed
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		answers, err := c.claims.doAll(ctx, c.done, claims)
		standings := make([]Standing, len(places))
		for i, a := range answers {
			standings[i], err = standing(a), cmp.Or(err, a.Err)
		}
		switch {
		case err == nil:
			return standings, nil
		case c.closed.Load() || ctx.Err() != nil: // says more than what came of it
			continue
		case time.Since(first)+backoff > askPatience:
			return nil, &StoreError{Op: "claim", Err: err}
		}
		c.sleep(ctx, backoff)
	}
}

// lookAt is the claim that looks at a place.
func (c *Client) lookAt(p Place, o *AcquireOptions) (Claim, error) {
	claim, err := c.newClaim(p.Key.Name, o)
	claim.Key, claim.Mode, claim.Redeems = p.Key, Look, p.Token
	return claim, err
}

// standing is what the answer to a look says.
func standing(a Answer) Standing {
	waits := a.State == Held && a.Queued
	return Standing{Waits: waits, Placed: waits, Ahead: a.Ahead, Idle: a.Idle}
}

// Near waits until at most so many places come before p and the key does not lie
// idle, or until p has nothing to wait for, as Standing says. At 0 it waits until p is
// next, and at -1 until its turn has come. What it says may be over by the time it is
// read.
//
// The errors are those of Standing; a store that does not answer is asked again for a
// while.
func (c *Client) Near(ctx context.Context, p Place, places int, o *AcquireOptions) error {
	_, err := c.NearAmong(ctx, p, nil, Pace{Near: places}, func(s Standing) bool { return s.Ahead <= places && !s.Idle }, o)
	return err
}

// NearAmong is Near for a place in front of others of its key, one of which may have
// moved before it: it returns p, or the place of which the store has told meanwhile
// that its turn has come. While p waits, near says at each look whether it is near enough;
// expected only says when to look.
func (c *Client) NearAmong(ctx context.Context, p Place, others []Place, expected Pace, near func(Standing) bool, o *AcquireOptions) (Place, error) {
	tokens := make([]Token, 1, 1+len(others))
	tokens[0] = p.Token
	for _, other := range others {
		tokens = append(tokens, other.Token)
	}
	woken := c.waiters.enter(tokens...)
	defer c.waiters.leaveUnread(woken, tokens...)
	pace := pace{expected: expected}
	heard := time.Now()
	told := func(w word) (Place, bool) {
		i := slices.Index(tokens, w.token)
		if i < 1 {
			return p, false
		}
		return others[i-1], true
	}
	for {
		select {
		case w := <-woken: // before it asks
			if other, ok := told(w); ok {
				return other, nil
			}
		default:
		}
		s, err := c.Standing(ctx, p, o)
		switch {
		case err == nil && (!s.Waits || near(s)):
			return p, nil
		case err == nil:
			heard = time.Now()
		case ctx.Err() != nil || c.closed.Load() || time.Since(heard) > waitPatience:
			return p, err
		}
		timer := time.NewTimer(pace.next(s.Ahead))
		select {
		case w := <-woken:
			if other, ok := told(w); ok {
				timer.Stop()
				return other, nil
			}
		case <-timer.C:
		case <-ctx.Done():
		case <-c.done:
		}
		timer.Stop()
	}
}

// Pace is what is expected of the places before one.
type Pace struct {
	// Near is about how many there are when the place is near.
	Near int
	// Each is how long one takes when the next follows at once: it is not thought to take
	// longer, whatever was seen. Default: as long as it was seen to take.
	Each time.Duration
}

// pace is how fast the places before one go.
type pace struct {
	expected Pace

	ahead int
	since time.Time     // when ahead was first seen
	each  time.Duration // how long one place takes; 0 while it is not known
	wait  time.Duration
}

// next returns when to look again, so many being ahead.
func (p *pace) next(ahead int) time.Duration {
	now := time.Now()
	switch {
	case p.since.IsZero():
		p.ahead, p.since = ahead, now
	case ahead < p.ahead:
		p.each = now.Sub(p.since) / time.Duration(p.ahead-ahead)
		p.ahead, p.since, p.wait = ahead, now, 0
	}
	p.wait = min(max(lookMin, p.wait+p.wait/2), lookMax)
	each := p.each
	if p.expected.Each > 0 {
		each = min(each, p.expected.Each) // it was seen to take longer: perhaps the key lay idle
	}
	return min(max(p.wait, each*time.Duration(ahead-p.expected.Near)/2), lookMax)
}
