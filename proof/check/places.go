package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// places: a reserved place stands until it is settled, or it or its Hold is over; a claim
// from it meanwhile is not told that there is none.
func places(c *clerk) {
	for _, e := range c.calls {
		if e.Kind != history.Claim || e.Redeems == "" || e.Mode != "try" || !e.Heard() || e.Error != "" || e.State != "held" || e.Queued {
			continue
		}
		i := slices.IndexFunc(c.attempts, func(a *attempt) bool { return a.token == e.Redeems })
		if i < 0 {
			continue
		}
		if r := c.reserved(c.attempts[i], e); r != nil {
			c.violated("places", "a claim from a reserved place was told that there is none", r, e)
		}
	}
}

// reserved returns the reservation by which the token surely had a place all through a
// call from it, or nil.
func (c *clerk) reserved(a *attempt, e *history.Event) *history.Event {
	if a.vague || c.forgotBetween(a.begin, e.Return) || c.faultBetween(a.begin, e.Return) {
		return nil
	}
	var r *history.Event
	for _, x := range a.calls {
		switch {
		case x.Call > e.Return:
		case x.Kind == history.Claim && x.Mode == "reserve" && x.State == "held" && x.Queued && x.Error == "" && x.Return < e.Call:
			r = x
		default:
			return nil // settled, asked otherwise, or under way
		}
	}
	if r == nil {
		return nil
	}
	since, hold := r.Call, r.Hold
	stands := func(x *history.Event) bool {
		return x.Return < after(since, min(r.Place, cmp.Or(hold, never)))-c.Slack
	}
	for _, x := range c.redeems[a.token] {
		if x == e || x.Call > e.Return || x.Mode == "look" || x.Heard() && (x.State == "held" || x.Error != "") {
			continue
		}
		ended := c.gaveBack(x, e.Call)
		if ended == nil || !stands(x) {
			return nil // it may have ended the place, or still have it, or never had it
		}
		since, hold = max(since, ended.Call), cmp.Or(x.Hold, hold)
	}
	if !stands(e) {
		return nil
	}
	return r
}

// gaveBack returns the settlement that ended, before a moment, a lease that was claimed
// from a reserved place so that the place stands again; nil if there is none for certain.
func (c *clerk) gaveBack(x *history.Event, by time.Duration) *history.Event {
	i := slices.IndexFunc(c.attempts, func(a *attempt) bool { return a.token == x.Token })
	if i < 0 || !x.Heard() || x.State != "granted" {
		return nil
	}
	a := c.attempts[i]
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

// passed: nobody who came after a reserved place is granted while it stands and nobody has
// claimed from it.
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
			if g.of.begin > from && g.of != a && !slices.ContainsFunc(g.answers, func(e *history.Event) bool { return e.Redeems != "" }) {
				c.violated("order", fmt.Sprintf("%v, who came later, was granted while the reserved place of %s stood", g, short(a.token)), r, g.of.calls[0], g.head())
				break
			}
		}
	}
}

// stood returns from when to when a token surely had a reserved place which nobody had
// claimed from, and its reservation; nil if it had none.
func (c *clerk) stood(a *attempt) (from, to time.Duration, r *history.Event) {
	r = a.calls[0]
	if a.vague || r.Kind != history.Claim || r.Mode != "reserve" || r.State != "held" || !r.Queued || r.Error != "" || r.MaxAge > 0 {
		return 0, 0, nil
	}
	from, to = r.Return, after(r.Call, min(r.Place, cmp.Or(r.Hold, never)))-c.Slack
	if len(a.calls) > 1 {
		to = min(to, a.calls[1].Call)
	}
	for _, x := range c.redeems[a.token] {
		if !x.Heard() || x.State != "held" {
			to = min(to, x.Call)
		}
	}
	for _, f := range c.forgot {
		if until(f) >= r.Call {
			to = min(to, f.Call)
		}
	}
	return from, to, r
}
