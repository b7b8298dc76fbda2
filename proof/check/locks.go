package check

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// Locks is what the sections of a history say about a lock of any library.
type Locks struct {
	// Sections is how many were entered.
	Sections int `json:"sections"`
	// Overlaps are the pairs of sections of one key that were held at once.
	Overlaps []Overlap `json:"overlaps"`
	// Late is how many sections wrote after a fault had stopped their process and another section
	// had begun. Only a fence refuses these writes.
	Late int `json:"late"`
	// Overtaken is by how many callers that came later a caller was passed at most.
	Overtaken int `json:"overtaken"`
}

// Overlap is a key that had two holders.
type Overlap struct {
	Key           string        `json:"key"`
	First, Second history.Event // Enter
	// Faults are the names of the faults that struck between the two entries, with "stop" and
	// "kill" for what happened to workers. If the first section had overlapped an earlier one,
	// they include the faults of that, because one overlap can lead to the next.
	Faults []string `json:"faults"`
}

// Sections checks the sections of a history that has no calls of a store. Of each Enter, Call is
// when the lock was asked for, Return when the section began, and Left for how long the holder
// may rely on it from then on, 0 if only the library says when it is over. Of each Leave, Call is
// the last moment when the holder looked and still held the lock, and Return its last write. A
// Token joins the two.
//
// An overlap counts only while both holders had reason to rely on the lock: a section counts
// until its Leave, until Left is over, or until its process is stopped. A section without Leave,
// or whose process paused while it asked, counts as little as possible.
func Sections(events []history.Event) *Locks {
	l := newIndex(events, Options{})
	r := &Locks{}
	for _, b := range l.keys {
		all := b.locked()
		r.Sections += len(all)
		for i, s := range all {
			r.Overtaken = max(r.Overtaken, overtaken(all, s))
			late := false
			for _, o := range all[:i] {
				if s.sure && o.stop > s.from {
					s.after = append(append(s.after, o.after...), l.between(events, o.from, s.from)...)
					slices.Sort(s.after)
					s.after = slices.Compact(s.after)
					r.Overlaps = append(r.Overlaps, Overlap{b.key, *o.enter, *s.enter, slices.Clone(s.after)})
				}
			}
			for _, o := range all {
				late = late || o != s && s.halted && o.from > s.stop && o.from <= s.wrote
			}
			if late {
				r.Late++
			}
		}
	}
	return r
}

// slackLeft is how much earlier than it says a lease may be over, because its clock is coarse.
const slackLeft = 5 * time.Millisecond

// lockSection is the time between an Enter and its Leave.
type lockSection struct {
	enter *history.Event
	from  time.Duration // when it was entered
	stop  time.Duration // until then its holder had reason to rely on the lock
	wrote time.Duration // its last write
	sure  bool          // it held the lock when it was entered
	left  bool
	// halted says that a fault stopped its process meanwhile.
	halted bool
	after  []string // the faults of its overlaps with earlier sections
}

// locked returns the sections of the key, in the order in which they were entered.
func (b *keyHistory) locked() []*lockSection {
	of := map[string]*lockSection{}
	var all []*lockSection
	for _, e := range b.sections {
		s := of[e.Token]
		switch {
		case e.Kind == history.Enter:
			s = &lockSection{enter: e, from: e.Return, stop: e.Return, sure: !b.haltedBetween(e.Process, e.Call, e.Return)}
			of[e.Token] = s
			all = append(all, s)
		case s != nil:
			s.left, s.stop, s.wrote = true, e.Call, e.Return
		}
	}
	for _, s := range all {
		if !s.left {
			continue
		}
		if s.enter.Left > 0 {
			s.stop = min(s.stop, s.from+s.enter.Left-slackLeft)
		}
		for _, h := range b.halts[s.enter.Process] {
			if until(h) >= s.from && h.Call < max(s.stop, s.wrote) {
				s.stop = max(s.from, min(s.stop, h.Call))
				s.halted = s.halted || h.Kind == history.Stopped && h.Name == ""
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *lockSection) int { return cmp.Compare(a.from, b.from) })
	return all
}

// overtaken returns how many sections were asked for after s was, and entered before it.
func overtaken(all []*lockSection, s *lockSection) (n int) {
	for _, o := range all {
		if o.from >= s.from {
			break
		}
		if o.enter.Call > s.enter.Call {
			n++
		}
	}
	return n
}

// between returns the names of the faults that struck between two moments.
func (l *index) between(events []history.Event, from, to time.Duration) []string {
	names := map[string]bool{}
	for i := range events {
		e := &events[i]
		if e.Call > to || until(e) < from {
			continue
		}
		switch e.Kind {
		case history.Fault:
			names[e.Name] = true
		case history.Stopped:
			names[cmp.Or(e.Name, "stop")] = true
		case history.Killed:
			names["kill"] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
