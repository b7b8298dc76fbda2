package check

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
)

// model is what may happen to a key. A state is what is known after some operations in one
// order. An operation happens at some moment between its call and its answer, so a lease ends
// between two moments. Where the fate of a record is unknown, the state forks.
type model struct {
	mutex    bool // the key has one permit
	slack    time.Duration
	late     time.Duration // an end may be noticed by that much later
	fresh    bool
	counting bool // every grant was answered, so that the abandoned leases are known
	records  bool // the register is modelled too, not only the lease
}

// state must not be changed, because several orders share it.
type state struct {
	now      time.Duration // it is not earlier
	freed    time.Duration // when the last lease was settled, at the earliest
	turn     int           // of the next grant
	leases   []lease
	unknown  bool   // an attempt that must not be repeated was abandoned
	count    int    // how many leases in a row were abandoned; -1 is not known
	print    string // the fingerprint of the last one
	progress string // what was saved last under one of them
	record   record
	pending  []*operation // records that may have been written, or may yet be
}

// lease is a lease that was granted and not known to have ended.
type lease struct {
	grant            *grant
	saved            string        // progress
	asked            time.Duration // by the claim that was granted
	earliest, latest time.Duration // when it ends without a settlement
}

// record is the record of the key.
type record struct {
	known       bool // there was one
	any         bool // unknown, because the beginning of the span is unknown
	of          *attempt
	data, print string
	from, to    time.Duration // when it was written
	retention   time.Duration // 0 is not known
}

// porcupine returns the model for the package porcupine.
func (m *model) porcupine() porcupine.Model {
	seed := maphash.MakeSeed()
	n := porcupine.NondeterministicModel{
		Init: func() []any { return []any{m.begin()} },
		Step: func(s, in, _ any) []any {
			next, _ := m.step(s.(*state), in.(*operation))
			all := make([]any, len(next))
			for i := range next {
				all[i] = next[i]
			}
			return all
		},
		Equal:             func(a, b any) bool { return a.(*state).equal(b.(*state)) },
		Hash:              func(s any) uint64 { return s.(*state).hash(seed) },
		DescribeOperation: func(in, _ any) string { return in.(*operation).String() },
		DescribeState:     func(s any) string { return s.(*state).String() },
	}
	return n.ToModel()
}

func (m *model) begin() *state {
	s := &state{record: record{any: !m.fresh}}
	if !m.fresh {
		s.count = -1
	}
	return s
}

// step returns the states after the operation, or none and why it cannot have happened.
func (m *model) step(s *state, op *operation) (next []*state, why string) {
	if max(s.now, op.call) > op.ret {
		return nil, "it was over before this"
	}
	n := *s
	n.now = max(s.now, op.call)
	switch op.kind {
	case taken:
		why = m.take(&n, op)
	case again:
		why = m.again(&n, op)
	case renewed:
		why = m.renew(&n, op)
	case lost:
		why = m.lose(&n, op)
	case ended:
		why = m.settle(&n, op)
	case kept:
		return m.keep(&n, op)
	case perhaps:
		n.pending = append(slices.Clip(n.pending), op)
	case done:
		return m.done(&n, op)
	case free:
		why = m.room(&n, op, nil, cmp.Or(op.e.Permits, 1), cmp.Or(op.e.Weight, 1))
		if why == "" && m.records && m.answers(&n, op) {
			why = fmt.Sprintf("there was a record that answers it: %v", n.record)
		}
	case refused:
		if m.records {
			why = m.differs(&n, op)
		}
	}
	if why != "" {
		return nil, why
	}
	return []*state{&n}, ""
}

// room returns why the leases, without that of one token, leave no room for another lease.
func (m *model) room(s *state, op *operation, but *attempt, permits, weight int) (why string) {
	for _, l := range m.live(s, op, but) {
		p, w := l.grant.permits()
		if weight += w; p != permits || weight > permits {
			return fmt.Sprintf("the key was held by %v until %v at least", l.grant, l.earliest)
		}
	}
	return ""
}

// live returns the leases, without that of one token, that surely stand while the operation
// happens.
func (m *model) live(s *state, op *operation, but *attempt) []lease {
	var live []lease
	for _, l := range s.leases {
		if l.earliest > op.ret && l.grant.of != but {
			live = append(live, l)
		}
	}
	return live
}

// find returns the place of the token's lease in s.leases, or -1.
func (s *state) find(a *attempt) int {
	return slices.IndexFunc(s.leases, func(l lease) bool { return l.grant.of == a })
}

// with returns the leases with one more, in the place of i if that is not -1.
func (s *state) with(i int, l lease) []lease {
	leases := slices.Clone(s.leases)
	if i < 0 {
		return append(leases, l)
	}
	leases[i] = l
	return leases
}

func (s *state) without(i int) []lease {
	return slices.Concat(s.leases[:i], s.leases[i+1:])
}

// lasting returns a lease that an operation of its holder has made last from then on. A
// store may look at its clock at any moment of a call, even before it waits for others; but
// of a lease that stands, after that: no call makes one end earlier than one before it did.
func (m *model) lasting(s *state, op *operation, l lease) lease {
	low, d := op.e.Call, op.e.TTL
	if op.e.Kind == history.Pushed {
		// Its PushedTTL began with whatever freed the key, not when it was asked for.
		if low = op.call; m.mutex {
			low = max(low, s.freed)
		}
	}
	l.earliest = min(after(low, min(d, op.of.short))-m.slack, op.of.doubt)
	l.latest = after(after(op.ret, after(d, op.of.extra)), m.slack+m.late)
	return l
}

// longCall is longer than every call. A lease that was over for so long is forgotten.
const longCall = time.Minute

// take is a grant.
func (m *model) take(s *state, op *operation) (why string) {
	g := op.grant
	if op.turn != s.turn {
		return "its fence says that it was granted in another order"
	}
	s.turn++
	if i := s.find(op.of); i >= 0 {
		if s.leases[i].earliest > op.ret {
			return fmt.Sprintf("it held the key already, as %v, and was granted it anew", s.leases[i].grant)
		}
	}
	permits, weight := g.permits()
	if why := m.room(s, op, op.of, permits, weight); why != "" {
		return why
	}
	if m.mutex {
		if why := m.inherit(s, op); why != "" {
			return why
		}
		s.leases = nil
	} else {
		s.leases = slices.DeleteFunc(slices.Clone(s.leases), func(l lease) bool { return l.grant.of == op.of || after(l.latest, longCall) < s.now })
	}
	if m.records && m.answers(s, op) {
		return fmt.Sprintf("there was a record that answers it: %v", s.record)
	}
	if m.records {
		m.overtake(s, op)
	}
	s.leases = s.with(-1, m.lasting(s, op, lease{grant: g, asked: op.e.Call}))
	return ""
}

// inherit is what a grant of a mutex makes of the last lease, if that was not settled.
func (m *model) inherit(s *state, op *operation) (why string) {
	if len(s.leases) > 0 {
		s.freed = max(s.freed, s.leases[0].earliest)
	}
	if len(s.leases) > 0 {
		if last := s.leases[0].grant.of; last != op.of && last.doubt == never && !last.vague {
			s.abandon(s.leases[0])
		} else {
			s.count, s.print = -1, "" // it may have been settled, or have replaced what was abandoned
		}
	}
	switch {
	case s.unknown:
		return "an attempt that must be made at most once was abandoned before, and not resolved"
	case m.records && m.counting && differ(s.print, op.e.Fingerprint):
		return "what was abandoned before has another fingerprint, and the answer was no mismatch"
	case m.counting && s.count >= 0 && op.e.Attempt != s.count+1 && s.now < store.AbandonedRetention:
		return fmt.Sprintf("it is attempt %d, but %d leases in a row were abandoned before", op.e.Attempt, s.count)
	case m.counting && s.count >= 0 && op.e.Data != s.progress && s.now < store.AbandonedRetention:
		return fmt.Sprintf("it got the progress %q, but %q was saved last", op.e.Data, s.progress)
	}
	// What was abandoned stays so until a lease ends cleanly.
	s.count, s.progress = op.e.Attempt-1, op.e.Data
	return ""
}

// abandon is the end of a lease that was not settled, or was abandoned.
func (s *state) abandon(l lease) {
	s.count, s.print = l.grant.number, l.grant.head().Fingerprint
	s.progress = cmp.Or(l.saved, s.progress)
	s.unknown = s.unknown || l.grant.head().AtMostOnce
}

// clean is the clean end of a lease.
func (s *state) clean() { s.count, s.print, s.progress = 0, "", "" }

// differ reports whether two fingerprints are set and differ.
func differ(a, b string) bool {
	return a != b && strings.Trim(a, "0") != "" && strings.Trim(b, "0") != ""
}

// again is a claim of a token that holds the key.
func (m *model) again(s *state, op *operation) (why string) {
	i := s.find(op.of)
	if i < 0 || s.leases[i].grant != op.grant || s.leases[i].latest < op.call {
		return fmt.Sprintf("it was granted the fence %d again, which it did not hold any more", op.grant.fence)
	}
	if op.e.Attempt != op.grant.number {
		return fmt.Sprintf("it was attempt %d, and is attempt %d now", op.grant.number, op.e.Attempt)
	}
	s.leases = s.with(i, m.lasting(s, op, s.leases[i]))
	return ""
}

// renew is a renewal that was answered nil.
func (m *model) renew(s *state, op *operation) (why string) {
	i := s.find(op.of)
	switch {
	case i >= 0 && s.leases[i].latest >= op.call:
		l := m.lasting(s, op, s.leases[i])
		l.saved = cmp.Or(op.e.Data, l.saved)
		s.leases = s.with(i, l)
	case op.unknown:
		why = m.unknown(s, op)
		if op.grant != nil {
			s.leases = s.with(-1, m.lasting(s, op, lease{grant: op.grant, asked: op.e.Call}))
		}
	case i >= 0:
		return fmt.Sprintf("its lease ended at %v at the latest, and it was renewed", s.leases[i].latest)
	default:
		return "it did not hold the key any more, and its lease was renewed"
	}
	return why
}

// unknown is a grant without an answer that a later operation of its token shows.
func (m *model) unknown(s *state, op *operation) (why string) {
	g := op.grant
	if g == nil {
		g = &grant{of: op.of, answers: []*history.Event{op.e}}
	}
	permits, weight := g.permits()
	if why := m.room(s, op, op.of, permits, weight); why != "" {
		return why
	}
	s.count, s.print = -1, ""
	if op.grant != nil {
		s.leases = slices.DeleteFunc(slices.Clone(s.leases), func(l lease) bool { return m.mutex || l.grant.of == op.of })
	}
	return ""
}

// lose is an answer that the token does not hold the key.
func (m *model) lose(s *state, op *operation) (why string) {
	i := s.find(op.of)
	if i < 0 || op.ret < s.leases[i].asked {
		return "" // it had not confirmed by then
	}
	if s.leases[i].earliest > op.ret {
		return fmt.Sprintf("its lease, %v, lasted until %v at least", s.leases[i].grant, s.leases[i].earliest)
	}
	if l := s.leases[i]; m.mutex && l.grant.of.doubt == never && !l.grant.of.vague {
		s.abandon(l)
	}
	s.leases = s.without(i)
	s.count = -1
	return ""
}

// settle is a settlement without a record that was answered nil.
func (m *model) settle(s *state, op *operation) (why string) {
	i := s.find(op.of)
	if i < 0 || s.leases[i].latest < op.call {
		if op.of.vague || op.of.waits() || op.of.grants != nil && op.call <= op.of.grants[len(op.of.grants)-1].by {
			return ""
		}
		return "it did not hold the key any more, nor wait for it"
	}
	l := s.leases[i]
	s.leases, s.freed = s.without(i), max(s.freed, op.call)
	switch op.e.Outcome {
	case "abandon":
		s.abandon(l)
	case "undo":
		// It deletes the lease, and nothing else.
	default:
		s.clean()
	}
	return ""
}
