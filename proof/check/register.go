package check

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"
)

// keep is a settlement with a record that was answered nil. The record is this one, or the one
// that the token had brought before, because a repeated settlement changes nothing.
func (m *model) keep(s *state, op *operation) (next []*state, why string) {
	if s.record.known && s.record.of == op.of {
		next = append(next, s)
	}
	i := s.find(op.of)
	switch {
	case i >= 0 && s.leases[i].latest >= op.call:
		next = append(next, s.written(op, op))
	case op.unknown:
		n := *s
		if why = m.unknown(&n, op); why == "" {
			next = append(next, n.written(op, op))
		}
	case i >= 0:
		why = fmt.Sprintf("its lease ended at %v at the latest, and its record was written", s.leases[i].latest)
	default:
		why = "it did not hold the key any more, and its record was written"
	}
	for _, p := range s.pending {
		if p.of == op.of {
			next = append(next, s.written(p, op))
		}
	}
	return next, why
}

// written returns the state after a record was written, at the latest when another operation
// shows it.
func (s *state) written(k, shown *operation) *state {
	n := *s
	n.record = record{
		known: true, of: k.of, data: k.e.Data, print: k.of.print(),
		from: k.call, to: shown.ret, retention: k.e.Retention,
	}
	if i := s.find(k.of); i >= 0 && !k.loose {
		n.leases, n.freed = s.without(i), max(s.freed, k.call)
		n.clean()
	}
	n.pending = slices.DeleteFunc(slices.Clone(s.pending), func(p *operation) bool {
		return p == k || p.of == shown.of || !k.of.vague && p.before(k.of)
	})
	return &n
}

// print returns the fingerprint of the token's claims.
func (a *attempt) print() string {
	for _, e := range a.calls {
		if e.Fingerprint != "" {
			return e.Fingerprint
		}
	}
	return ""
}

// before reports whether a record that may have been written was written, if at all, before
// every grant of another token: its lease was an earlier one.
func (op *operation) before(a *attempt) bool {
	if op.loose || op.of.vague || len(op.of.grants) == 0 || len(a.grants) == 0 {
		return false
	}
	return op.of.grants[len(op.of.grants)-1].index < a.grants[0].index
}

// answers reports whether the key surely has a record that the claim accepts.
func (m *model) answers(s *state, op *operation) bool {
	r := &s.record
	if !r.known || r.retention == 0 || op.e.MaxAge <= 0 || r.of == op.of {
		return false
	}
	if !m.accepted(op, r.from, r.retention) {
		return false
	}
	// Another one may have taken its place, and may have ended.
	return !slices.ContainsFunc(s.pending, func(p *operation) bool {
		return !p.before(r.of) && !m.accepted(op, p.e.Call, p.e.Retention)
	})
}

// accepted reports whether a record that was written at that time or later surely stands, and is
// young enough for the claim.
func (m *model) accepted(op *operation, written, retention time.Duration) bool {
	return op.ret < after(written, retention)-m.slack && op.ret-written < op.e.MaxAge-m.slack
}

// overtake forgets records that may have been written before a grant, if the claim would have
// been answered by them.
func (m *model) overtake(s *state, op *operation) {
	if len(s.pending) == 0 || op.e.MaxAge <= 0 {
		return
	}
	s.pending = slices.DeleteFunc(slices.Clone(s.pending), func(p *operation) bool {
		return p.of != op.of && p.before(op.of) && m.accepted(op, p.e.Call, p.e.Retention)
	})
}

// done is a claim that a record answered.
func (m *model) done(s *state, op *operation) (next []*state, why string) {
	if !m.records {
		return []*state{s}, ""
	}
	if why := m.differs(s, op); why != "" {
		return nil, why
	}
	e := op.e
	r := s.record
	switch {
	case r.any:
		n := *s
		n.record = record{known: true, data: e.Data, to: op.ret}
		next = append(next, &n)
	case !r.known:
		why = "there was no record"
	case r.data != e.Data:
		why = fmt.Sprintf("the record was another one: %v", r)
	case differ(r.print, e.Fingerprint):
		why = "the record has another fingerprint, and the answer was no mismatch"
	case r.retention > 0 && op.call > after(after(r.to, r.retention), m.slack+m.late):
		why = fmt.Sprintf("the record had ended by %v", after(r.to, r.retention))
	case r.retention > 0 && e.MaxAge > 0 && op.call-r.to > after(e.MaxAge, m.slack+m.late):
		why = fmt.Sprintf("the record was older than %v, which the claim does not accept", e.MaxAge)
	default:
		next = append(next, s)
	}
	for _, p := range s.pending {
		if p.e.Data != e.Data || differ(p.of.print(), e.Fingerprint) {
			continue
		}
		next = append(next, s.written(p, op))
	}
	return next, why
}

// differs returns which lease with another fingerprint surely holds the key.
func (m *model) differs(s *state, op *operation) (why string) {
	for _, l := range m.live(s, op, op.of) {
		if differ(l.grant.head().Fingerprint, op.e.Fingerprint) {
			return fmt.Sprintf("%v held the key with another fingerprint, and the answer was no mismatch", l.grant)
		}
	}
	return ""
}

func (s *state) equal(t *state) bool {
	return s.turn == t.turn && s.now == t.now && s.freed == t.freed && s.unknown == t.unknown && s.count == t.count &&
		s.print == t.print && s.progress == t.progress && s.record == t.record && slices.Equal(s.leases, t.leases) && slices.Equal(s.pending, t.pending)
}

func (s *state) hash(seed maphash.Seed) uint64 {
	var b [32]byte
	binary.LittleEndian.PutUint64(b[:], uint64(s.turn))
	binary.LittleEndian.PutUint64(b[8:], uint64(s.record.to))
	for _, l := range s.leases {
		binary.LittleEndian.PutUint64(b[16:], uint64(l.earliest)^l.grant.fence)
	}
	binary.LittleEndian.PutUint64(b[24:], uint64(len(s.pending)))
	return maphash.Bytes(seed, b[:])
}

func (s *state) String() string {
	var parts []string
	for _, l := range s.leases {
		parts = append(parts, fmt.Sprintf("%v until %v to %v", l.grant, l.earliest, l.latest))
	}
	if len(parts) == 0 {
		parts = append(parts, "no token holds the key")
	}
	if s.unknown {
		parts = append(parts, "unknown")
	}
	if s.record.known {
		parts = append(parts, s.record.String())
	}
	if n := len(s.pending); n > 0 {
		parts = append(parts, fmt.Sprintf("%d records may be written", n))
	}
	return strings.Join(parts, "; ")
}

func (r record) String() string {
	return fmt.Sprintf("record %s of %v to %v", r.data, r.from, r.to)
}

func (g *grant) String() string { return fmt.Sprintf("%s with fence %d", short(g.of.token), g.fence) }

// short returns the last digits of a token.
func short(token string) string { return token[max(0, len(token)-8):] }

func (op *operation) String() string {
	s := short(op.of.token) + " " + kinds[op.kind]
	switch op.kind {
	case taken, again:
		s += fmt.Sprintf(" fence %d", op.grant.fence)
	case kept, perhaps, done:
		s += " " + op.e.Data
	}
	return s
}
