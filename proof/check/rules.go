package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// rules are the checks beside the models. Each looks at one key.
var rules = []func(*checker){
	fences, sections, effects, replies, mismatches, held, order, places, passed, progress,
}

// fences: a grant that was surely made after another one has a higher fence, even if the store
// has lost its data, and no two grants have the same fence.
func fences(c *checker) {
	for i, g := range c.grants {
		if i > 0 && g.fence == c.grants[i-1].fence {
			c.violated("fences", fmt.Sprintf("two tokens were granted the fence %d", g.fence), c.grants[i-1].head(), g.head())
		}
	}
	begun := slices.SortedFunc(slices.Values(c.grants), func(a, b *grant) int { return cmp.Compare(a.from, b.from) })
	over := c.answered
	var highest *grant
	for _, g := range begun {
		for len(over) > 0 && over[0].by < g.from {
			if highest == nil || over[0].fence > highest.fence {
				highest = over[0]
			}
			over = over[1:]
		}
		if highest != nil && g.fence < highest.fence {
			c.violated("fences", fmt.Sprintf("the fence %d was granted after %d", g.fence, highest.fence), highest.head(), g.head())
		}
	}
}

// granted returns the grant with that fence, or nil.
func (b *keyHistory) granted(fence uint64) *grant {
	i, ok := slices.BinarySearchFunc(b.grants, fence, func(g *grant, fence uint64) int { return cmp.Compare(g.fence, fence) })
	if !ok {
		return nil
	}
	return b.grants[i]
}

// section is the time between a worker's Enter and its Leave.
type section struct {
	enter, leave *history.Event // leave is nil if there is none
	grant        *grant         // nil if it was never answered
	stop         time.Duration  // until then no other section may begin
}

// sections: there are never more sections at once than the key has permits, while each of them
// has a valid lease. A section ends with its lease, unless its process was stopped.
func sections(c *checker) {
	var all []*section
	for _, e := range c.sections {
		if e.Kind == history.Enter {
			all = append(all, &section{enter: e, grant: c.granted(e.Fence)})
			continue
		}
		for i := len(all) - 1; i >= 0; i-- {
			if s := all[i]; s.leave == nil && s.enter.Process == e.Process && s.enter.Restarts == e.Restarts && s.enter.Fence == e.Fence {
				s.leave = e
				break
			}
		}
	}
	var inside []*section
	for _, s := range all {
		c.overstays(s)
		s.stop = c.alone(s)
		inside = slices.DeleteFunc(inside, func(o *section) bool { return o.stop <= s.enter.Call })
		if s.stop <= s.enter.Call {
			continue
		}
		inside = append(inside, s)
		if crowded(inside) {
			var events []*history.Event
			for _, o := range inside {
				events = append(events, o.enter)
				if o.leave != nil {
					events = append(events, o.leave)
				}
				if o.grant != nil {
					events = append(events, o.grant.head())
				}
			}
			c.violated("sections", fmt.Sprintf("%d sections were entered at once, at %v, each with a valid lease", len(inside), s.enter.Call), events...)
			inside = inside[1:]
		}
	}
}

// crowded reports whether these sections cannot be at once, because they see other numbers of
// permits, or take more permits than there are.
func crowded(inside []*section) bool {
	weight := 0
	for _, s := range inside {
		weight += cmp.Or(s.enter.Weight, 1)
		if s.enter.Permits != inside[0].enter.Permits {
			return true
		}
	}
	return weight > cmp.Or(inside[0].enter.Permits, 1)
}

// alone returns until when no other section may begin: until this one is left, or its lease is
// over, its process is stopped, or the store loses its data.
func (c *checker) alone(s *section) time.Duration {
	stop := never
	if s.leave != nil {
		stop = s.leave.Call
	}
	if s.leave == nil || s.leave.Error != "" {
		if s.grant == nil {
			return 0
		}
		stop = min(stop, s.grant.certain(c.Slack))
	}
	begin := s.enter.Call
	for _, h := range c.halts[s.enter.Process] {
		if h.Call <= stop && until(h) >= begin {
			stop = min(stop, h.Call)
		}
	}
	if s.grant != nil {
		begin = s.grant.from
	}
	for _, f := range c.forgot {
		if f.Call <= stop && until(f) >= begin {
			stop = min(stop, f.Call)
		}
	}
	return stop
}

// overstays reports a section that went on after its lease, in a process that was not stopped.
func (c *checker) overstays(s *section) {
	if s.leave == nil || s.grant == nil {
		return
	}
	latest := s.grant.latest(c.Slack)
	if s.leave.Call <= after(latest, c.Reaction) || c.haltedBetween(s.enter.Process, s.grant.from, s.leave.Call) {
		return
	}
	c.violated("overstayed", fmt.Sprintf("the section was left %v after its lease had ended, at %v at the latest", s.leave.Call-latest, latest),
		s.grant.head(), s.enter, s.leave)
}

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
		} else if x.Mode == "queue" && x.Grace > 0 { // a grant that nobody saw may have set it
			to = min(to, after(x.Call, x.Grace)-c.Slack)
		}
	}
	for _, f := range c.forgot {
		if until(f) >= r.Call {
			to = min(to, f.Call)
		}
	}
	return from, to, r
}

// prompt is how much longer than a TTL it may take until a key moves on.
const prompt = time.Second

// progress: after the last fault every call is answered, and a key with a waiter is not idle.
func progress(c *checker) {
	if c.faultsEnd == 0 {
		return
	}
	bound := after(c.ttl, prompt)
	settled := after(c.faultsEnd, bound) // what the last fault has left behind is over
	for _, e := range c.calls {
		switch {
		case e.Kind == history.Pushed: // what it took is the wait
		case e.Call < settled || c.haltedBetween(e.Process, e.Call, until(e)):
		case impatient(e) && e.Return-e.Call <= bound:
		case e.Return == 0 && c.end-e.Call > bound, !e.Answered() && e.Return != 0:
			c.violated("progress", "a call was not answered though there was no fault any more", e)
		case e.Return-e.Call > bound:
			c.violated("progress", fmt.Sprintf("a call took %v though there was no fault any more", e.Return-e.Call), e)
		}
	}
	c.idle(settled, bound)
}

// impatient reports whether a call ended because its caller gave up.
func impatient(e *history.Event) bool {
	return e.Return != 0 && !e.Answered() &&
		(strings.Contains(e.Text, context.Canceled.Error()) || strings.Contains(e.Text, context.DeadlineExceeded.Error()))
}

// idle looks for a waiter of a key that no token can have held.
func (c *checker) idle(settled, bound time.Duration) {
	for _, e := range c.calls {
		if e.Kind == history.Claim && e.Mode == "reserve" {
			return // a reserved place may keep the key idle for as long as it stands
		}
	}
	// From the end of each lease to the next grant the key may be idle.
	type span struct {
		from, to time.Duration
		grant    *grant
	}
	holds := make([]span, 0, len(c.grants))
	for _, g := range c.grants {
		holds = append(holds, span{g.from, c.released(g), g})
	}
	slices.SortFunc(holds, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for _, a := range c.attempts {
		if a.vague {
			continue
		}
		for i, e := range a.calls {
			if e.Kind != history.Claim || e.Mode != "queue" || e.State != "held" || !e.Queued || e.Error != "" {
				continue
			}
			if i > 0 && a.calls[i-1].Kind == history.Claim && a.calls[i-1].State == "held" {
				continue // part of the wait that began before
			}
			from, to := max(e.Return, settled), e.Call
			for _, n := range a.calls[i:] {
				if n.Kind != history.Claim || n.State != "held" {
					break
				}
				to = n.Call
			}
			idle := from
			for _, h := range holds {
				if h.from > to {
					break
				}
				if h.from-idle > bound {
					break
				}
				idle = max(idle, h.to)
			}
			if to-idle > bound {
				c.violated("progress", fmt.Sprintf("a token waited from %v to %v at least, and no token held the key after %v", from, to, idle), e)
			}
		}
	}
}

// released returns until when a grant may have blocked others.
func (c *checker) released(g *grant) time.Duration {
	to := g.latest(c.Slack + c.Late)
	for _, e := range g.of.calls {
		if e.Kind == history.Settle && e.Answered() && e.Error == "" && e.Call >= g.from {
			return min(to, e.Return)
		}
	}
	if c.forgotBetween(g.from, to) {
		return never // by the clock of then it may stand for long
	}
	return to
}

// effects: a transaction that commits an effect together with its record happens once, as
// long as the record stands.
func effects(c *checker) {
	for i, second := range c.effects {
		for _, first := range c.effects[:i] {
			ended := first.Retention > 0 && after(first.Call, first.Retention)-c.Slack < until(second)
			if !ended && !c.forgotBetween(first.Call, until(second)) {
				c.violated("effects", "a transaction that was committed with its record happened twice", first, second)
				break
			}
		}
	}
}

// replies: a caller gets only what a holder had sent as a record by then.
func replies(c *checker) {
	kept := map[string]*history.Event{} // the first of each content
	for _, a := range c.attempts {
		for _, k := range a.kept {
			if f := kept[k.Data]; f == nil || k.Call < f.Call {
				kept[k.Data] = k
			}
		}
	}
	if len(kept) == 0 {
		return // the history has no contents
	}
	for _, r := range c.replies {
		if k := kept[r.Data]; r.Answered() && r.Error == "" && (k == nil || k.Call > r.Return) {
			c.violated("replies", fmt.Sprintf("a caller got %s, which no holder had kept", r.Data), r)
		}
	}
}

// mismatches: a claim is answered with a mismatch only if another claim had another fingerprint.
func mismatches(c *checker) {
	for _, e := range c.calls {
		if e.Kind != history.Claim || e.State != "mismatch" {
			continue
		}
		if !slices.ContainsFunc(c.calls, func(o *history.Event) bool { return o.Call <= e.Return && differ(o.Fingerprint, e.Fingerprint) }) {
			c.violated("mismatch", "no other claim of the key had another fingerprint", e)
		}
	}
}
