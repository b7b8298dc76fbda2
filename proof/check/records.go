package check

import (
	"fmt"
	"slices"

	"github.com/dibs-go/dibs/proof/history"
)

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
