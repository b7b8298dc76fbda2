package check

import (
	"cmp"
	"fmt"
	"slices"
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
