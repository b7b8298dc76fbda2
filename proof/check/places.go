package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// places: a reserved place stands until it is settled, it or its Hold is over, or a lease
// that was granted there ends cleanly; a claim from it meanwhile is not told that there is
// none. While a lease from it stands, nobody else is granted it.
func places(c *clerk) {
	for _, e := range c.calls {
		if e.Kind != history.Claim || e.From == "" || e.Mode == "look" || !e.Heard() || e.Error != "" {
			continue
		}
		none := e.Mode == "try" && e.State == "held" && !e.Queued
		a := c.tokens[e.From]
		if a == nil || !none && e.State != "granted" {
			continue
		}
		switch r, taker := c.reserved(a, e); {
		case r == nil:
		case none && taker == nil:
			c.violated("places", "a claim from a reserved place was told that there is none", r, e)
		case none:
			c.violated("places", "a claim from a reserved place at which a lease was granted was told that there is none", r, taker, e)
		case taker != nil:
			c.violated("places", "a claim from a reserved place was granted while another lease from it stood", r, taker, e)
		}
	}
}

// reserved returns the reservation by which the token surely had a place all through a
// call from it, or nil; and how the lease was granted that surely stood at it then, if
// there was one.
func (c *clerk) reserved(a *attempt, e *history.Event) (r, taker *history.Event) {
	if a.vague || c.forgotBetween(a.begin, e.Return) {
		return nil, nil
	}
	for _, x := range a.calls {
		switch {
		case x.Call > e.Return:
		case x.Kind == history.Claim && x.Mode == "reserve" && x.State == "held" && x.Queued && x.Error == "" && x.Return < e.Call:
			r = x
		default:
			return nil, nil // settled, asked otherwise, or under way
		}
	}
	if r == nil || c.tokens[e.Token].begin < r.Return {
		return nil, nil // it may have an older number of its own
	}
	since, hold := r.Call, cmp.Or(r.Hold, never)
	stands := func(x *history.Event) bool {
		return x.Return < min(after(r.Call, r.Stay), after(since, hold))-c.Slack
	}
	for _, x := range c.claims[a.token] { // a lease came from the place after the one that is heard of before
		switch {
		case x == e, x.Call > e.Return, x.Mode == "look", x.Heard() && (x.State == "held" || x.Error != "") && !c.mayEnd(x):
		case taker != nil && x.Token == taker.Token:
		case !stands(x):
			return nil, nil // it may never have had the place
		case c.tokens[x.Token].begin > r.Return && c.keeps(x, e):
			taker = x
		default:
			ended := c.gaveBack(x, e.Call)
			if ended == nil {
				return nil, nil // it may have ended the place, or still have it
			}
			since, hold = max(since, c.tokens[x.Token].grants[0].from), min(cmp.Or(x.Hold, never), hold)
		}
	}
	if !stands(e) {
		return nil, nil
	}
	return r, taker
}

// mayEnd reports whether a waiter from a reserved place may have been granted in its
// absence, and have ended that lease and the place cleanly.
func (c *clerk) mayEnd(x *history.Event) bool {
	return x.Mode == "queue" && slices.ContainsFunc(c.tokens[x.Token].calls, func(s *history.Event) bool {
		return s.Kind == history.Settle && s.Outcome != "undo" && s.Outcome != "abandon" && s.Error != history.Lost
	})
}

// keeps reports whether a lease that was granted stood for certain all through the call
// of another token.
func (c *clerk) keeps(x, e *history.Event) bool {
	a := c.tokens[x.Token]
	if x.Token == e.Token || x.State != "granted" || a.vague || len(a.grants) != 1 {
		return false
	}
	g := a.grants[0]
	return g.by < e.Call && g.certain(c.Slack) > e.Return &&
		!slices.ContainsFunc(a.calls, func(s *history.Event) bool { return s.Kind == history.Settle && s.Call <= e.Return })
}

// gaveBack returns the settlement that ended, before a moment, a lease that was claimed
// from a reserved place so that the place stands again; nil if there is none for certain.
func (c *clerk) gaveBack(x *history.Event, by time.Duration) *history.Event {
	if !x.Heard() || x.State != "granted" {
		return nil
	}
	a := c.tokens[x.Token]
	last := a.calls[len(a.calls)-1]
	if a.vague || a.doubt != never || len(a.grants) != 1 || last.Kind != history.Settle || last.Outcome != "abandon" && last.Outcome != "undo" ||
		!last.Heard() || last.Error != "" || last.Return >= by {
		return nil
	}
	for _, e := range a.calls[:len(a.calls)-1] {
		if e.Kind == history.Settle || until(e) > last.Call {
			return nil
		}
	}
	return last
}

// passed: nobody who came after a reserved place, or claims from one that did, is granted
// while it stands and no lease from it can.
func passed(c *clerk) {
	for _, a := range c.attempts {
		from, to, r := c.stood(a)
		if r == nil || from >= to {
			continue
		}
		for _, g := range c.heard[c.heardBy(from):] {
			if g.by >= to {
				break
			}
			if c.came(g) > from && g.of != a {
				c.violated("order", fmt.Sprintf("%v, who came later, was granted while the reserved place of %s stood", g, short(a.token)), r, g.of.calls[0], g.head())
				break
			}
		}
	}
}

// stood returns from when to when a token surely had a reserved place at which no lease
// stood that let others pass, and its reservation; nil if it had none.
func (c *clerk) stood(a *attempt) (from, to time.Duration, r *history.Event) {
	r = a.calls[0]
	if a.vague || r.Kind != history.Claim || r.Mode != "reserve" || r.State != "held" || !r.Queued || r.Error != "" {
		return 0, 0, nil
	}
	asked := never // again, by its own token
	if len(a.calls) > 1 {
		asked = a.calls[1].Call
	}
	from, to = r.Return, min(asked, after(r.Call, min(r.Stay, cmp.Or(r.Hold, never)))-c.Slack)
	shown := time.Duration(0)
	for _, x := range c.claims[a.token] {
		if x.Mode != "look" && (!x.Heard() || x.State != "held" || x.Mode == "queue" && c.permits > 1 || c.mayEnd(x)) {
			to = min(to, x.Call)
		}
		// Who asks from the place and does not join shows that it stood until then, as what
		// has gone does not come back. A lease may have stood there meanwhile, but a mutex is
		// nobody else's then.
		if x.Mode != "queue" && c.permits == 1 && x.Heard() && x.Error == "" && x.State == "held" && x.Queued &&
			x.Return < min(asked, c.queues(x)) {
			shown = max(shown, x.Call)
		}
	}
	to = max(to, shown)
	for _, f := range c.forgot {
		if until(f) >= r.Call {
			to = min(to, f.Call)
		}
	}
	return from, to, r
}

// queues returns when the token of a claim asked for a place of its own first.
func (b *book) queues(x *history.Event) time.Duration {
	if a := b.tokens[x.Token]; a != nil {
		return a.queues
	}
	return never // it only looked
}
