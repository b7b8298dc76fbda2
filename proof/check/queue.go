package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// stay is from when to when a token may have stood in the way of others.
type stay struct {
	from, to time.Duration
	of       *attempt
}

// held: who is told that a key is held was kept from it by somebody who held it, or had a
// place before it.
func held(c *clerk) {
	var stays []stay
	for _, a := range c.attempts {
		if to := c.gone(a); to >= 0 {
			stays = append(stays, stay{a.begin, to, a})
		}
	}
	slices.SortFunc(stays, func(a, b stay) int { return cmp.Compare(a.from, b.from) })
	// The two that stay longest of the first so many; of two tokens, as one may be the
	// claim's own.
	longest := make([][2]stay, len(stays))
	var two [2]stay
	for i, s := range stays {
		switch {
		case two[0].of == nil || s.to > two[0].to:
			two[0], two[1] = s, two[0]
		case two[1].of == nil || s.to > two[1].to:
			two[1] = s
		}
		longest[i] = two
	}
	for _, a := range c.attempts {
		for _, e := range a.calls {
			if e.Kind != history.Claim || e.State != "held" || e.Mode == "reserve" || !e.Heard() || e.Error != "" {
				continue
			}
			n, _ := slices.BinarySearchFunc(stays, after(e.Return, 1), func(s stay, t time.Duration) int { return cmp.Compare(s.from, t) })
			if n > 0 && slices.ContainsFunc(longest[n-1][:], func(s stay) bool { return s.of != nil && s.of != a && s.to >= e.Call }) {
				continue
			}
			if c.forgotBetween(c.calls[0].Call, e.Return) {
				continue // an older state may have come back
			}
			c.violated("held", "the key was held, but nobody held it nor waited for it", e)
		}
	}
}

// ends: who is told that a key is held, and that no lease of it is to end, asked when there
// was none.
func ends(c *clerk) {
	longest := make([]*grant, len(c.heard)) // of each and those heard of before
	over := func(g *grant) time.Duration { return min(g.certain(c.Slack), g.of.settles) }
	for i, g := range c.heard {
		longest[i] = g
		if i > 0 && over(longest[i-1]) > over(g) {
			longest[i] = longest[i-1]
		}
	}
	for _, e := range c.calls {
		if e.Kind != history.Claim || e.State != "held" || e.Left != 0 || e.Mode == "reserve" || !e.Heard() || e.Error != "" {
			continue
		}
		if n := c.heardBy(e.Call); n > 0 && over(longest[n-1]) > e.Return && !c.forgotBetween(longest[n-1].from, e.Return) {
			c.violated("held", "no lease was to end, though there was one", longest[n-1].head(), e)
		}
	}
}

// gone returns when a token can have stood in nobody's way any more, or -1 if it never did.
func (c *clerk) gone(a *attempt) time.Duration {
	if a.vague || a.extra > 0 {
		return never // what nobody heard of may happen at any time
	}
	to := time.Duration(-1)
	for _, e := range a.calls {
		switch e.Kind {
		case history.Claim:
			switch {
			case e.Mode == "look" || e.Error != "":
			case e.Mode == "reserve" && e.State == "held":
				to = max(to, after(e.Return, e.Stay))
			case e.State == "granted":
				to = max(to, after(e.Return, e.TTL))
			case waiting(e):
				to = max(to, turnOver(e))
			}
		case history.Told:
			to = max(to, after(e.Return, e.TTL))
		case history.Renew:
			if e.Error == "" {
				to = max(to, after(e.Return, e.TTL))
			}
		}
	}
	// A place or a lease that was settled is gone at once, if nothing was asked for since.
	if last := a.calls[len(a.calls)-1]; last.Kind == history.Settle && last.Heard() && (last.Error == "" || last.Error == history.Lost) && last.Outcome != "keep" &&
		!slices.ContainsFunc(a.calls[:len(a.calls)-1], func(e *history.Event) bool { return until(e) > last.Call }) {
		return min(to, last.Return)
	}
	if to < 0 {
		return to
	}
	return after(to, c.Slack)
}

// turnOver returns when the turn of a waiter is over at the latest, as far as this answer
// goes: it may come at the end of its Stay, and last for PushedTTL.
func turnOver(e *history.Event) time.Duration {
	if e.Stay == 0 {
		return never // a Try leaves the place as it was
	}
	return after(after(e.Return, e.Stay), dibs.PushedTTL)
}

// queued reports whether a call of the token found it at a place in the queue, as far as it
// had heard by then: it may have been granted the key there since, and not have heard that.
func (b *book) queued(a *attempt, call *history.Event) bool {
	heard, to, fence := time.Duration(-1), time.Duration(0), uint64(0) // what it was told last, and until when it may hold
	for _, e := range a.calls {
		if !waiting(e) || e.AtMostOnce || !e.Heard() || e.Call > until(call) {
			continue
		}
		heard, fence = max(heard, e.Return), max(fence, e.Fence)
		to = max(to, turnOver(e))
	}
	if heard < 0 || call.Call > after(to, b.Slack) {
		return false
	}
	return !slices.ContainsFunc(a.calls, func(e *history.Event) bool {
		switch {
		case !e.Heard() || e.Return > call.Call || e.Error != "" && e.Error != history.Lost:
			return false
		case e.Kind == history.Renew: // it was granted, and the model has that lease
			return e.Call >= heard && e.Error == ""
		case e.Kind == history.Settle: // who cannot keep a record waits on
			return e.Call >= heard && (e.Outcome != "keep" || e.Error == "")
		}
		return e.State == "granted" && e.Return >= heard && (e.Fence > fence || fence == 0)
	})
}

// wait is one that had a place from one moment to another without a gap in which it may
// have lost it.
type wait struct {
	of    *attempt
	first *history.Event // the answer by which it surely had a place
	last  *history.Event // the last one by which it still had it, or was granted
	grant *grant         // nil if it was not granted
}

// order: of two who waited together, the one who surely came first is granted first.
func order(c *clerk) {
	var waits []wait
	for _, a := range c.attempts {
		waits = append(waits, c.waited(a)...)
	}
	c.waits = len(waits)
	if len(waits) == 0 {
		return
	}
	// The grant whose place came last, of those with a smaller fence, and of those that were
	// heard of first.
	byFence, byHeard := latest(c.grants, c.came), latest(c.heard, c.came)
	for _, w := range waits {
		var before *grant
		if w.grant != nil {
			if w.grant.index > 0 {
				before = byFence[w.grant.index-1]
			}
		} else {
			if n := c.heardBy(w.last.Call); n > 0 {
				before = byHeard[n-1]
			}
		}
		if before == nil || before.of == w.of || c.came(before) <= w.first.Return {
			continue
		}
		c.violated("order", fmt.Sprintf("%s waited, and %v, who came later, was granted before", short(w.of.token), before), w.first, w.last, before.of.calls[0], before.head())
	}
}

// latest returns, for each, the one of it and those before it that came last.
func latest(grants []*grant, came func(*grant) time.Duration) []*grant {
	r := make([]*grant, len(grants))
	for i, g := range grants {
		r[i] = g
		if i > 0 && came(r[i-1]) > came(g) {
			r[i] = r[i-1]
		}
	}
	return r
}

// waited returns the waits of a token, as far as nothing can have interrupted them: each
// time it asked again before its place, or the turn that it may have had, was over.
func (c *clerk) waited(a *attempt) (waits []wait) {
	if a.vague || a.placed < 0 {
		return nil
	}
	var w wait
	flush := func() {
		if w.first != nil && w.last != w.first && !a.settling(w.first.Call, w.last.Return) &&
			!c.deaf(a, w.first.Call) && !c.disturbed(a, w.first.Call, w.last.Return) {
			waits = append(waits, w)
		}
		w = wait{of: a}
	}
	flush()
	for _, e := range a.calls {
		stands := e.Kind == history.Claim && e.Mode == "queue" && e.From == "" && e.Error == "" && e.MaxAge == 0 && !e.AtMostOnce
		switch {
		case e.Kind == history.Told && w.first != nil:
			if e.Return < w.due(c) {
				w.last, w.grant = e, a.grantOf(e)
			}
			flush()
		case stands && e.State == "held" && e.Queued:
			if w.first != nil && e.Return >= w.due(c) {
				flush()
			}
			if w.first == nil {
				w.first = e
			}
			w.last = e
		case stands && e.State == "granted" && w.first != nil:
			if e.Return < w.due(c) {
				w.last, w.grant = e, a.grantOf(e)
			}
			flush()
		default:
			flush()
		}
	}
	flush()
	return waits
}

// settling reports whether a settlement was under way between: a claim may be answered
// when the place that it was made for is given up.
func (a *attempt) settling(from, to time.Duration) bool {
	return slices.ContainsFunc(a.calls, func(e *history.Event) bool {
		return e.Kind == history.Settle && e.Call < to && until(e) > from
	})
}

// due returns until when the place, and a turn that came at once, stand for certain.
func (w *wait) due(c *clerk) time.Duration {
	return after(w.last.Call, min(w.last.Stay, w.last.TTL, dibs.PushedTTL)) - c.Slack
}

func (a *attempt) grantOf(e *history.Event) *grant {
	for _, g := range a.grants {
		if g.fence == e.Fence {
			return g
		}
	}
	return nil
}

// deaf reports whether a process may not have heard of turns of the key by then.
func (c *clerk) deaf(a *attempt, then time.Duration) bool {
	if c.Deaf == 0 {
		return false
	}
	begun := then
	for _, other := range c.attempts {
		if e := other.calls[0]; e.Process == a.calls[0].Process && e.Life == a.calls[0].Life {
			begun = min(begun, e.Call)
		}
	}
	return then < after(begun, c.Deaf)
}

// disturbed reports whether anything may have cost a token its place: its process stood
// still, a fault, lost data, or a record that sent those away who accept it.
func (c *clerk) disturbed(a *attempt, from, to time.Duration) bool {
	return c.haltedBetween(a.calls[0].Process, from, to) || c.faultBetween(from, to) || c.forgotBetween(from, to) ||
		c.prints > 1
}
