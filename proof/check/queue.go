package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
)

// stay is the time in which a token may have blocked others.
type stay struct {
	from, to time.Duration
	of       *attempt
}

// held: a claim is answered that the key is held only if another token held it, or had a place
// before it.
func held(c *checker) {
	var stays []stay
	for _, a := range c.attempts {
		if to := c.gone(a); to >= 0 {
			stays = append(stays, stay{a.begin, to, a})
		}
	}
	slices.SortFunc(stays, func(a, b stay) int { return cmp.Compare(a.from, b.from) })
	// longest[i] are the two longest of the first i+1 stays. There are two, because one may be
	// the claim's own.
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
			if e.Kind != history.Claim || e.State != "held" || e.Mode == "reserve" || !e.Answered() || e.Error != "" {
				continue
			}
			n, _ := slices.BinarySearchFunc(stays, after(e.Return, 1), func(s stay, t time.Duration) int { return cmp.Compare(s.from, t) })
			if n > 0 && slices.ContainsFunc(longest[n-1][:], func(s stay) bool { return s.of != nil && s.of != a && s.to >= e.Call }) {
				continue
			}
			if c.forgotBetween(c.calls[0].Call, e.Return) || c.staleBetween(e.Call, e.Return) {
				continue // an older state may have come back
			}
			c.violated("held", "the key was held, but no other token held it or waited for it", e)
		}
	}
}

// gone returns when a token surely did not block any more, or -1 if it never blocked.
func (c *checker) gone(a *attempt) time.Duration {
	if a.vague || a.extra > 0 {
		return never // what has no answer may happen at any time
	}
	to := time.Duration(-1)
	for _, e := range a.calls {
		switch e.Kind {
		case history.Claim:
			switch {
			case e.Mode == "look" || e.Error != "":
			case e.Mode == "reserve" && e.State == "held":
				to = max(to, after(e.Return, e.PlaceTTL))
			case e.State == "granted":
				to = max(to, after(e.Return, e.TTL))
			case waiting(e):
				to = max(to, turnOver(e))
			}
		case history.Pushed:
			to = max(to, after(e.Return, e.TTL))
		case history.Renew:
			if e.Error == "" {
				to = max(to, after(e.Return, e.TTL))
			}
		}
	}
	if to >= 0 {
		to = after(to, c.Late)
	}
	// A place or a lease that was settled is gone at once, if nothing was asked for since.
	if last := a.calls[len(a.calls)-1]; last.Kind == history.Settle && last.Answered() && (last.Error == "" || last.Error == history.Lost) && last.Outcome != "keep" &&
		!slices.ContainsFunc(a.calls[:len(a.calls)-1], func(e *history.Event) bool { return until(e) > last.Call }) {
		return min(to, last.Return)
	}
	if to < 0 {
		return to
	}
	return after(to, c.Slack)
}

// turnOver returns when the turn of a waiter is over at the latest, as far as this answer says:
// it may come at the end of PlaceTTL, and last for PushedTTL.
func turnOver(e *history.Event) time.Duration {
	if e.PlaceTTL == 0 {
		return never // a Try leaves the place as it was
	}
	return after(after(e.Return, e.PlaceTTL), store.PushedTTL)
}

// queued reports whether a call found its token waiting, as far as its client knew. It may have
// been granted the key meanwhile without knowing.
func (b *keyHistory) queued(a *attempt, call *history.Event) bool {
	answered, to, fence := time.Duration(-1), time.Duration(0), uint64(0) // its last answer, and until when it may hold
	for _, e := range a.calls {
		if !waiting(e) || e.AtMostOnce || !e.Answered() || e.Call > until(call) {
			continue
		}
		answered, fence = max(answered, e.Return), max(fence, e.Fence)
		to = max(to, turnOver(e))
	}
	if answered < 0 || call.Call > after(to, b.Slack+b.Late) {
		return false
	}
	return !slices.ContainsFunc(a.calls, func(e *history.Event) bool {
		switch {
		case !e.Answered() || e.Return > call.Call || e.Error != "" && e.Error != history.Lost:
			return false
		case e.Kind == history.Renew: // it was granted, and the model has that lease
			return e.Call >= answered && e.Error == ""
		case e.Kind == history.Settle: // a token that cannot keep a record waits on
			return e.Call >= answered && (e.Outcome != "keep" || e.Error == "")
		}
		return e.State == "granted" && e.Return >= answered && (e.Fence > fence || fence == 0)
	})
}

// wait is the time in which a token surely had a place, without a gap.
type wait struct {
	of    *attempt
	first *history.Event // the answer by which it surely had a place
	last  *history.Event // the last one by which it still had it, or was granted
	grant *grant         // nil if it was not granted
}

// order: of two tokens that wait together, the one that surely came first is granted first.
func order(c *checker) {
	var waits []wait
	for _, a := range c.attempts {
		waits = append(waits, c.waited(a)...)
	}
	c.waits = len(waits)
	if len(waits) == 0 {
		return
	}
	// The grant whose place came last, of those with a smaller fence, and of those that were
	// answered earlier.
	byFence, byHeard := latest(c.grants, c.came), latest(c.answered, c.came)
	for _, w := range waits {
		var before *grant
		if w.grant != nil {
			if w.grant.index > 0 {
				before = byFence[w.grant.index-1]
			}
		} else {
			if n := c.answeredBy(w.last.Call); n > 0 {
				before = byHeard[n-1]
			}
		}
		if before == nil || before.of == w.of || c.came(before) <= w.first.Return {
			continue
		}
		c.violated("order", fmt.Sprintf("%s waited, and %v, which came later, was granted before", short(w.of.token), before), w.first, w.last, before.of.calls[0], before.head())
	}
}

// latest returns, for each grant, the one of it and those before it that came last.
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

// waited returns the waits of a token: it asked again each time before its place, or a turn that
// it may have had, was over.
func (c *checker) waited(a *attempt) (waits []wait) {
	if a.vague || a.placed < 0 {
		return nil
	}
	var w wait
	flush := func() {
		if w.first != nil && w.last != w.first && !a.settling(w.first.Call, w.last.Return) &&
			!c.subscribing(a, w.first.Call) && !c.disturbed(a, w.first.Call, w.last.Return) {
			waits = append(waits, w)
		}
		w = wait{of: a}
	}
	flush()
	for _, e := range a.calls {
		stands := e.Kind == history.Claim && e.Mode == "queue" && e.From == "" && e.Error == "" && e.MaxAge == 0 && !e.AtMostOnce
		switch {
		case e.Kind == history.Pushed && w.first != nil:
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

// settling reports whether a settlement was under way between two moments, because a claim may
// be answered while its place is given up.
func (a *attempt) settling(from, to time.Duration) bool {
	return slices.ContainsFunc(a.calls, func(e *history.Event) bool {
		return e.Kind == history.Settle && e.Call < to && until(e) > from
	})
}

// due returns until when the place, and a turn that came at once, surely stand.
func (w *wait) due(c *checker) time.Duration {
	return after(w.last.Call, min(w.last.PlaceTTL, w.last.TTL, store.PushedTTL)) - c.Slack
}

func (a *attempt) grantOf(e *history.Event) *grant {
	for _, g := range a.grants {
		if g.fence == e.Fence {
			return g
		}
	}
	return nil
}

// subscribing reports whether a process may not have subscribed to the key by then.
func (c *checker) subscribing(a *attempt, then time.Duration) bool {
	if c.SubscribeDelay == 0 {
		return false
	}
	begun := then
	for _, other := range c.attempts {
		if e := other.calls[0]; e.Process == a.calls[0].Process && e.Restarts == a.calls[0].Restarts {
			begun = min(begun, e.Call)
		}
	}
	return then < after(begun, c.SubscribeDelay)
}

// disturbed reports whether a token may have lost its place: by a stop of its process, a fault,
// lost data, or a record.
func (c *checker) disturbed(a *attempt, from, to time.Duration) bool {
	return c.haltedBetween(a.calls[0].Process, from, to) || c.faultBetween(from, to) || c.forgotBetween(from, to) ||
		c.prints > 1
}
