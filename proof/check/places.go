package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// places: a claim from a reserved place is not answered that the place does not exist while it
// stands. It stands until it is settled, it or its Grace is over, or a lease from it ends cleanly.
func places(c *checker) {
	for _, e := range c.calls {
		if e.Kind != history.Claim || e.From == "" || e.Mode != "try" || e.State != "held" || e.Queued || !e.Answered() || e.Error != "" {
			continue
		}
		if a := c.tokens[e.From]; a != nil {
			if r := c.reserved(a, e); r != nil {
				c.violated("places", "a claim from a reserved place was answered that the place does not exist", r, e)
			}
		}
	}
}

// reserved returns the reservation by which the token surely had a place all through a
// claim from it; nil if it may have had none.
func (c *checker) reserved(a *attempt, e *history.Event) (r *history.Event) {
	if a.vague || c.forgotBetween(a.begin, e.Return) {
		return nil
	}
	for _, x := range a.calls {
		switch {
		case x.Call > e.Return:
		case reservation(x) && x.Return < e.Call:
			r = x
		default:
			return nil // settled, asked otherwise, or under way
		}
	}
	if r == nil || c.tokens[e.Token].begin < r.Return {
		return nil
	}
	lasts := min(r.PlaceTTL, cmp.Or(r.Grace, never))
	for _, x := range c.claims[a.token] {
		switch {
		case x == e, x.Call > e.Return, x.Mode == "look", x.Answered() && (x.State == "held" || x.Error != "") && !c.mayEnd(x):
		case !c.gaveBack(x, e.Call) && !(c.tokens[x.Token].begin > r.Return && c.keeps(x, e)):
			return nil // it may have ended the place
		}
		lasts = min(lasts, cmp.Or(x.Grace, never))
	}
	if e.Return >= after(r.Call, lasts)-c.Slack {
		return nil
	}
	return r
}

// reservation reports whether a call reserved a place.
func reservation(e *history.Event) bool {
	return e.Kind == history.Claim && e.Mode == "reserve" && e.State == "held" && e.Queued && e.Error == ""
}

// mayEnd reports whether a waiter from a reserved place may have been granted in its
// absence, and have ended that lease and the place cleanly.
func (c *checker) mayEnd(x *history.Event) bool {
	return x.Mode == "queue" && slices.ContainsFunc(c.tokens[x.Token].calls, func(s *history.Event) bool {
		return s.Kind == history.Settle && s.Outcome != "undo" && s.Outcome != "abandon" && s.Error != history.Lost
	})
}

// keeps reports whether a lease from a reserved place stood for certain all through the call
// of another token.
func (c *checker) keeps(x, e *history.Event) bool {
	a := c.tokens[x.Token]
	if x.Token == e.Token || x.State != "granted" || a.vague || len(a.grants) != 1 {
		return false
	}
	g := a.grants[0]
	return g.by < e.Call && g.certain(c.Slack) > e.Return &&
		!slices.ContainsFunc(a.calls, func(s *history.Event) bool { return s.Kind == history.Settle && s.Call <= e.Return })
}

// gaveBack reports whether a lease that was claimed from a reserved place ended for certain
// before a moment, so that the place stands again.
func (c *checker) gaveBack(x *history.Event, by time.Duration) bool {
	a := c.tokens[x.Token]
	last := a.calls[len(a.calls)-1]
	return x.Answered() && x.State == "granted" && !a.vague && a.doubt == never && len(a.grants) == 1 &&
		last.Kind == history.Settle && (last.Outcome == "abandon" || last.Outcome == "undo") &&
		last.Answered() && last.Error == "" && last.Return < by &&
		!slices.ContainsFunc(a.calls[:len(a.calls)-1], func(e *history.Event) bool {
			return e.Kind == history.Settle || until(e) > last.Call
		})
}

// passed: a token that came after a reserved place, or that claims from a later place, is not
// granted while the place stands and no lease from it can.
func passed(c *checker) {
	for _, a := range c.attempts {
		from, to, r := c.stood(a)
		if r == nil || from >= to {
			continue
		}
		for _, g := range c.answered[c.answeredBy(from):] {
			if g.by >= to {
				break
			}
			if c.came(g) > from && g.of != a {
				c.violated("order", fmt.Sprintf("%v, which came later, was granted while the reserved place of %s stood", g, short(a.token)), r, g.of.calls[0], g.head())
				break
			}
		}
	}
}

// stood returns from when to when a token surely had a reserved place at which no lease
// stood that let others pass, and its reservation; nil if it had none.
func (c *checker) stood(a *attempt) (from, to time.Duration, r *history.Event) {
	r = a.calls[0]
	if a.vague || !reservation(r) {
		return 0, 0, nil
	}
	from, to = r.Return, after(r.Call, min(r.PlaceTTL, cmp.Or(r.Grace, never)))-c.Slack
	if len(a.calls) > 1 {
		to = min(to, a.calls[1].Call) // asked for again, by its own token
	}
	for _, x := range c.claims[a.token] {
		if x.Mode != "look" && (!x.Answered() || x.State != "held" || x.Mode == "queue" && c.permits > 1 || c.mayEnd(x)) {
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
