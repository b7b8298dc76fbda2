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
	to := g.latest(c.Slack)
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
