package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// kind is what an operation says about one moment between its call and its answer.
type kind uint8

const (
	taken   kind = iota // the lease was granted
	again               // its holder asked again and got the same answer
	renewed             // it was renewed
	lost                // its token got ErrLost, or was held by another
	ended               // it was settled without a record
	kept                // it was settled with a record
	perhaps             // a record may have been written, at any time from now
	done                // a record answered
	free                // a Look found the key free
	refused             // a claim with a fingerprint found the key held
)

var kinds = [...]string{"granted", "granted again", "renewed", "lost", "settled", "kept", "perhaps kept", "done", "free", "held"}

// operation is one call with its answer, for the model of a key.
type operation struct {
	kind      kind
	call, ret time.Duration // when it took effect
	of        *attempt
	grant     *grant // the lease that was granted
	turn      int    // of a grant: its number among those that are checked together; else -1
	loose     bool   // another operation of its token is not in the span
	unknown   bool   // its token may have been granted without an answer; in its absence, if it has a grant
	e         *history.Event
}

// operations returns the calls of the key, in the order of Call, without those that say nothing
// about leases and records.
func (b *keyHistory) operations() []operation {
	var ops []operation
	for _, a := range b.attempts {
		for _, g := range a.grants {
			for i, e := range g.answers {
				op := operation{kind: again, call: e.Call, ret: e.Return, of: a, grant: g, turn: -1, e: e}
				if i == 0 {
					op.kind, op.call = taken, g.from
				} else if e.Kind == history.Pushed || e.Mode == "reserve" {
					continue // nothing new
				}
				ops = append(ops, op)
			}
		}
		for _, e := range a.calls {
			op := operation{call: e.Call, ret: e.Return, of: a, turn: -1, e: e}
			var says bool
			if op.kind, says = b.says(a, e); !says || a.idle(op.kind) {
				continue
			}
			if op.kind == perhaps {
				op.ret = op.call
			}
			if op.unknown = a.vague || b.queued(a, e); op.unknown && !a.vague {
				op.grant = &grant{of: a, number: -1, answers: []*history.Event{e}}
			}
			ops = append(ops, op)
		}
	}
	slices.SortStableFunc(ops, func(a, b operation) int { return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.ret, b.ret)) })
	return ops
}

// idle reports whether an operation says nothing, because its token never held the key. One call
// can have many of them, and the model would try all their orders.
func (a *attempt) idle(k kind) bool {
	return len(a.grants) == 0 && (k == lost || k == ended && (a.vague || a.waits()))
}

// says returns what a call that was not granted says, if it says anything.
func (b *keyHistory) says(a *attempt, e *history.Event) (k kind, says bool) {
	if !e.Answered() {
		return perhaps, e.Kind == history.Settle && e.Outcome == "keep"
	}
	switch e.Kind {
	case history.Claim:
		holds := len(a.grants) > 0 && e.Call > a.grants[0].by && e.Mode != "reserve" && e.Mode != "look"
		switch {
		case e.Error != "":
			return 0, false
		case e.State == "done":
			return done, true
		case e.State != "granted" && b.staleBetween(e.Call, e.Return):
			return 0, false
		case e.State == "free":
			return free, anonymous(e)
		case e.State == "held" && holds:
			return lost, true
		case e.State == "held" && b.prints > 1 && e.Fingerprint != "" && e.Mode != "reserve":
			return refused, true
		}
	case history.Renew:
		switch e.Error {
		case "":
			return renewed, true
		case history.Lost:
			return lost, true
		}
	case history.Settle:
		switch {
		case e.Error == history.Lost:
			return lost, true
		case e.Error != "":
		case e.Outcome == "keep":
			return kept, true
		default:
			return ended, true
		}
	}
	return 0, false
}

// span is a part of a key's history that is checked by itself.
type span struct {
	ops   []operation
	fresh bool // nothing was before: the key is free and has no record
	whole bool // nothing was left out
}

// Parts of a long history are checked by themselves, each overlapping the next by half.
// A token that lives across an edge is left out, which can only make a check milder; what
// it kept may be there or not.
const (
	// spanWhole is the longest history that is checked as a whole. Parts of a longer one are
	// checked by themselves, each overlapping the next one by half. A token that lives across an
	// edge is left out, which can only make the check milder.
	spanWhole = 4000 // up to this many operations are checked as a whole
	spanStep  = 1500
)

// spans divides the operations, which are sorted by call, where data was lost and where there
// are too many of them.
func (b *keyHistory) spans(ops []operation) []span {
	var spans []span
	from, fresh := time.Duration(0), true
	for _, f := range b.forgot {
		if f.Call >= from {
			spans = append(spans, b.divide(ops, from, f.Call-1, fresh)...)
		}
		from, fresh = max(from, after(until(f), 1)), false
	}
	return append(spans, b.divide(ops, from, never, fresh)...)
}

// divide divides the operations between two moments.
func (b *keyHistory) divide(ops []operation, from, to time.Duration, fresh bool) []span {
	lo, _ := slices.BinarySearchFunc(ops, from, func(o operation, t time.Duration) int { return cmp.Compare(o.call, t) })
	hi, _ := slices.BinarySearchFunc(ops, after(to, 1), func(o operation, t time.Duration) int { return cmp.Compare(o.call, t) })
	if hi-lo <= spanWhole {
		return []span{cut(ops, from, to, fresh)}
	}
	var spans []span
	for i := lo; i < hi; i += spanStep {
		start, stop := from, to
		if i > lo {
			start = ops[i].call
		}
		last := i+2*spanStep >= hi
		if !last {
			stop = ops[i+2*spanStep].call
		}
		spans = append(spans, cut(ops, start, stop, fresh && i == lo))
		if last {
			break
		}
	}
	return spans
}

// cut returns the operations of those tokens that did everything between two moments. Of the
// others it keeps only the records that they may have left.
func cut(ops []operation, from, to time.Duration, fresh bool) span {
	s := span{fresh: fresh, whole: true}
	for _, op := range ops {
		if op.call > to {
			break
		}
		switch {
		case op.of.begin >= from && op.of.end <= to:
			s.ops = append(s.ops, op)
		case op.ret >= from || op.kind == perhaps:
			s.leaveOut(op, from)
		}
	}
	s.number()
	return s
}

// leaveOut leaves an operation out, but not the record that it may have left.
func (s *span) leaveOut(op operation, from time.Duration) {
	s.whole = false
	if op.kind == kept || op.kind == perhaps {
		op.kind, op.turn, op.loose = perhaps, -1, true
		op.call = max(op.call, from)
		op.ret = op.call
		s.ops = append(s.ops, op)
	}
}

// number gives the grants of a span their turns in the order of their fences, because they can
// have been made in no other order.
func (s *span) number() {
	var grants []*grant
	for _, op := range s.ops {
		if op.kind == taken {
			grants = append(grants, op.grant)
		}
	}
	slices.SortStableFunc(grants, func(a, b *grant) int { return cmp.Compare(a.index, b.index) })
	turns := make(map[*grant]int, len(grants))
	for i, g := range grants {
		turns[g] = i
	}
	for i := range s.ops {
		if g := s.ops[i].grant; g != nil {
			s.ops[i].turn = turns[g]
		}
	}
}
