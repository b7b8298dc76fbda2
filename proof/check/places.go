package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// places: a reserved place stands until it is settled, or it or its Hold is over; a claim
// from it meanwhile is not told that there is none. While a lease from it stands, nobody
// else is granted it.
func places(c *clerk) {
	for _, e := range c.calls {
		if e.Kind != history.Claim || e.Redeems == "" || e.Mode != "try" || !e.Heard() || e.Error != "" {
			continue
		}
		none := e.State == "held" && !e.Queued
		a := c.tokens[e.Redeems]
		if a == nil || !none && e.State != "granted" {
			continue
		}
		switch r, taker := c.reserved(a, e); {
		case r == nil:
		case none && taker == nil:
			c.violated("places", "a claim from a reserved place was told that there is none", r, e)
		case none:
			c.violated("places", "a claim from a reserved place that a lease had taken was told that there is none", r, taker, e)
		case taker != nil:
			c.violated("places", "a claim from a reserved place was granted while another lease had taken it", r, taker, e)
		}
	}
}

// reserved returns the reservation by which the token surely had a place all through a
// call from it, or nil; and how the lease was granted that surely had taken it then, if
// there was one.
func (c *clerk) reserved(a *attempt, e *history.Event) (r, taker *history.Event) {
	if a.vague || c.forgotBetween(a.begin, e.Return) || c.faultBetween(a.begin, e.Return) {
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
	if r == nil {
		return nil, nil
	}
	since, hold := r.Call, cmp.Or(r.Hold, never)
	stands := func(x *history.Event) bool { return x.Return < after(since, min(r.Place, hold))-c.Slack }
	for _, x := range c.redeems[a.token] { // a lease came from the place after the one that is heard of before
		switch {
		case x == e, x.Call > e.Return, x.Mode == "look", x.Heard() && (x.State == "held" || x.Error != ""):
		case taker != nil && x.Token == taker.Token:
		case !stands(x):
			return nil, nil // it may never have had the place
		case x.Call > r.Return && c.keeps(x, e): // before, it may have been granted without a place
			taker = x
		default:
			ended := c.gaveBack(x, e.Call)
			if ended == nil {
				return nil, nil // it may have ended the place, or still have it
			}
			since, hold = max(since, ended.Call), cmp.Or(x.Hold, hold)
		}
	}
	if taker == nil && !stands(e) {
		return nil, nil
	}
	return r, taker
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
// while it stands and no lease can have taken it.
func passed(c *clerk) {
	var heard []*grant // by when they were heard of
	for _, a := range c.attempts {
		from, to, r := c.stood(a)
		if r == nil || from >= to {
			continue
		}
		if heard == nil {
			heard = slices.SortedFunc(slices.Values(c.grants), func(a, b *grant) int { return cmp.Compare(a.by, b.by) })
		}
		n, _ := slices.BinarySearchFunc(heard, from, func(g *grant, t time.Duration) int { return cmp.Compare(g.by, t) })
		for _, g := range heard[n:] {
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

// stood returns from when to when a token surely had a reserved place which no lease had
// taken that let others pass, and its reservation; nil if it had none.
func (c *clerk) stood(a *attempt) (from, to time.Duration, r *history.Event) {
	r = a.calls[0]
	if a.vague || r.Kind != history.Claim || r.Mode != "reserve" || r.State != "held" || !r.Queued || r.Error != "" || r.MaxAge > 0 {
		return 0, 0, nil
	}
	asked := never // again, by its own token
	if len(a.calls) > 1 {
		asked = a.calls[1].Call
	}
	from, to = r.Return, min(asked, after(r.Call, min(r.Place, cmp.Or(r.Hold, never)))-c.Slack)
	shown := time.Duration(0)
	for _, x := range c.redeems[a.token] {
		if x.Mode != "look" && (!x.Heard() || x.State != "held") {
			to = min(to, x.Call)
		}
		// Who waits at the place shows that it stood until then, as what has gone does not
		// come back. A lease may have had it meanwhile, but a mutex is nobody else's then.
		if r.Permits == 1 && x.Heard() && x.Error == "" && x.State == "held" && x.Queued &&
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
