package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// transactional is the Name of an Effect that commits together with its answer.
const transactional = "transaction"

// effects: what is to happen once for a key happens once. In a transaction always; and
// otherwise again only when the first time did not come to an acknowledged end, and
// something that the history tells of is the reason.
func effects(c *clerk) {
	for i, second := range c.effects {
		for _, first := range c.effects[:i] {
			if why := c.twice(first, second); why != "" {
				c.violated("effects", why, first, second)
				break
			}
		}
	}
}

// twice says what is wrong with an effect that another one came after, or "".
func (c *clerk) twice(first, second *history.Event) string {
	if first.Retention > 0 && after(first.Call, first.Retention)-c.Slack < until(second) ||
		c.forgotBetween(first.Call, until(second)) {
		return "" // its record may have ended, or be gone
	}
	if first.Name == transactional {
		return "what was committed with its answer happened twice"
	}
	if c.belated(first) || c.belated(second) {
		return ""
	}
	if why, reason := c.unfinished(first, second); !reason {
		return "an effect happened twice, and " + why
	}
	return ""
}

// cause returns the attempt that an effect is of, or nil.
func (c *clerk) cause(e *history.Event) *attempt {
	i := slices.IndexFunc(c.attempts, func(a *attempt) bool {
		return e.Token != "" && a.token == e.Token ||
			e.Token == "" && slices.ContainsFunc(a.grants, func(g *grant) bool { return g.fence == e.Fence })
	})
	if i < 0 {
		return nil
	}
	return c.attempts[i]
}

// belated reports whether an effect may have come too late: its lease had run out by then,
// its process stood still on the way, or the store forgot it.
func (c *clerk) belated(e *history.Event) bool {
	a := c.cause(e)
	return a != nil && slices.ContainsFunc(a.grants, func(g *grant) bool {
		return (e.Fence == 0 || g.fence == e.Fence) &&
			(g.certain(c.Slack) < until(e) || c.haltedBetween(e.Process, g.from, until(e)) || c.forgotBetween(g.from, until(e)))
	})
}

// unfinished reports whether the history has a reason for an effect to happen again, and
// otherwise says that it has none.
func (c *clerk) unfinished(e, again *history.Event) (why string, reason bool) {
	if c.haltedBetween(e.Process, e.Call, until(again)) {
		return "", true
	}
	a := c.cause(e)
	if a == nil {
		return "the history has no lease for the first", false
	}
	for _, s := range a.calls {
		switch {
		case !s.Heard(), s.Error != "":
			return "", true // unknown, lost, or refused
		case s.Kind == history.Settle && s.Outcome != "keep":
			return "", true // given up by its holder
		case s.Kind == history.Settle && after(s.Call, s.Retention)-c.Slack < until(again):
			return "", true // its record may have ended
		}
	}
	for _, l := range c.sections {
		if l.Kind == history.Leave && l.Error != "" && l.Fence == e.Fence {
			return "", true
		}
	}
	if len(a.kept) > 0 {
		return "the record of the first was acknowledged", false
	}
	if len(a.grants) > 0 && a.grants[len(a.grants)-1].certain(c.Slack) < until(again) {
		return "", true // it ran out
	}
	return "nothing had gone wrong with the first", false
}

// acknowledged: a record that its holder was told is kept is found by every later claim
// that accepts it, until it ends.
func acknowledged(c *clerk) {
	var keeps []*history.Event // that may have happened
	for _, a := range c.attempts {
		keeps = append(keeps, a.kept...)
	}
	slices.SortFunc(keeps, func(a, b *history.Event) int { return cmp.Compare(until(a), until(b)) })
	if len(keeps) == 0 {
		return
	}
	stands := func(k, e *history.Event) bool {
		return e.Return < after(k.Call, k.Retention)-c.Slack && e.Return-k.Call < e.MaxAge-c.Slack
	}
	for _, e := range c.calls {
		if e.Kind != history.Claim || !e.Heard() || e.Error != "" || e.MaxAge <= 0 || e.State == "done" || e.State == "mismatch" || e.State == "permits differ" {
			continue
		}
		n, _ := slices.BinarySearchFunc(keeps, e.Call, func(k *history.Event, t time.Duration) int { return cmp.Compare(until(k), t) })
		if n == 0 || !stands(keeps[n-1], e) {
			continue
		}
		k := keeps[n-1]
		switch {
		case e.State == "granted" && c.holds(e):
			// It held the key already, and asked again.
		case slices.ContainsFunc(keeps, func(o *history.Event) bool {
			return (until(o) >= k.Call || o.Token == k.Token) && o.Call <= e.Return && !stands(o, e)
		}):
			// Another one may have taken its place, or was there before it, and may have ended.
		case c.forgotBetween(k.Call, e.Return):
		default:
			c.violated("lost", fmt.Sprintf("the record %s was acknowledged, and a claim that accepts it was answered %s", k.Data, e.State), k, e)
		}
	}
}

// holds reports whether an answered claim's token may have held the key when it was sent.
func (c *clerk) holds(e *history.Event) bool {
	for _, a := range c.attempts {
		if a.token == e.Token && a.begin < e.Call {
			return true
		}
	}
	return false
}

// replies: everybody who wanted a key done once is told what a record says, and the same
// as long as that record stands.
func replies(c *clerk) {
	kept := map[string]*history.Event{} // the first of each content
	eldest := never                     // the first end of any
	for _, a := range c.attempts {
		for _, k := range a.kept {
			if f := kept[k.Data]; f == nil || k.Call < f.Call {
				kept[k.Data] = k
			}
			eldest = min(eldest, after(k.Call, k.Retention)-c.Slack)
		}
	}
	if len(kept) == 0 {
		return // nobody wrote down what was kept
	}
	var last *history.Event
	byReturn := func(a, b *history.Event) int { return cmp.Compare(until(a), until(b)) }
	for _, r := range slices.SortedStableFunc(slices.Values(c.replies), byReturn) { // who asked first may be told last
		if !r.Heard() || r.Error != "" {
			continue
		}
		k := kept[r.Data]
		if k == nil || k.Call > r.Return {
			c.violated("replies", fmt.Sprintf("somebody was told %s, which nobody had kept", r.Data), r)
			continue
		}
		if last != nil && last.Data != r.Data && !differ(last.Fingerprint, r.Fingerprint) && c.onlyOnce() &&
			r.Return < eldest && !c.forgotBetween(min(kept[last.Data].Call, k.Call), r.Return) {
			c.violated("replies", fmt.Sprintf("one was told %s, and the next %s, though no record can have ended", last.Data, r.Data), kept[last.Data], last, k, r)
		}
		last = r
	}
}

// onlyOnce reports whether every claim of the key accepts a record: a lock passes over it.
func (c *clerk) onlyOnce() bool {
	return !slices.ContainsFunc(c.calls, func(e *history.Event) bool {
		return e.Kind == history.Claim && e.Mode != "look" && e.MaxAge < never/2
	})
}

// mismatches: only who asks something else than others did is told so.
func mismatches(c *clerk) {
	for _, e := range c.calls {
		if e.Kind != history.Claim || e.State != "mismatch" {
			continue
		}
		if !slices.ContainsFunc(c.calls, func(o *history.Event) bool { return o.Call <= e.Return && differ(o.Fingerprint, e.Fingerprint) }) {
			c.violated("mismatch", "nobody had asked anything else of the key", e)
		}
	}
}
