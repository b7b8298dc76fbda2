package engine

import (
	"time"

	"github.com/dibs-go/dibs/store"
)

// Settle ends a lease or gives up a place, and reports whether the token had either.
func (st *State) Settle(x *store.Settlement) bool {
	st.Advance()
	p := st.place(x.Token)
	if p != nil && p.Kind == kept {
		st.drop(p)
		p = nil
	}
	if l := st.leases.of(x.Token); l != nil {
		st.settle(l, x)
	} else if x.Outcome == store.Keep {
		return st.record.Of(x.Token, st.now) // it was sent twice, or comes too late
	} else if p != nil {
		st.drop(p)
	} else {
		return false
	}
	st.serve()
	return true
}

// settle ends a holder's lease.
func (st *State) settle(l *Lease, x *store.Settlement) {
	if x.Outcome == store.Keep {
		st.keep(x.Token, l.Fingerprint, x.Data, Micros(x.Retention))
	}
	switch x.Outcome {
	case store.Abandon:
		was := *l
		st.leases.remove(l)
		st.abandon(&was, st.most)
	case store.Undo:
		st.leases.remove(l)
	default:
		seq := l.Seq
		st.leases.remove(l)
		st.clean(seq)
	}
}

// abandon counts a lease, which was removed from the others, as abandoned at that time.
func (st *State) abandon(was *Lease, then int64) {
	l := *was
	l.Abandoned, l.Attempt, l.Ends, l.Seq, l.Inherits = true, 1, then, 0, 0
	if st.abandoned != nil {
		l.Attempt, l.Inherits = st.abandoned.Attempt+1, st.abandoned.Inherits
	}
	if st.saved[l.Fence] {
		l.Inherits = l.Fence
	}
	if st.abandoned = &l; l.Once {
		st.wakeAll(false)
	}
}

// clean deletes what is left of a lease that was granted at that number and removed from the
// others, and forgets the leases that were abandoned before it.
func (st *State) clean(seq int64) {
	st.deleteAt(seq)
	st.abandoned = nil
}

// keep writes a record, and wakes the waiters that it may answer.
func (st *State) keep(t store.Token, f store.Fingerprint, data []byte, retention int64) {
	st.record = Record{Token: t, Written: st.most, Ends: st.most + retention, Fingerprint: f}
	st.step(Step{Does: WriteRecord, Data: data})
	st.answerAll()
}

// erase deletes the record.
func (st *State) erase() {
	if st.record.Ends != 0 {
		st.record = Record{}
		st.step(Step{Does: EraseRecord})
	}
}

// ForceRelease ends the leases of a key and forgets its abandoned lease: all, or the lease that
// the ID names. It returns how many.
func (st *State) ForceRelease(id string) (n int) {
	st.Advance()
	is := func(t store.Token) bool { return id == "" || t.ID() == id }
	if st.abandoned != nil && is(st.abandoned.Token) {
		n++
	}
	for i := 0; i < len(st.leases.all); {
		if l := &st.leases.all[i]; is(l.Token) {
			st.settle(l, &store.Settlement{})
			n++
		} else {
			i++
		}
	}
	if n > 0 {
		st.abandoned = nil
		st.serve()
	}
	return n
}

// Forget deletes the record and forgets an abandoned lease: both, or the one that the ID names.
// It reports whether there was either.
func (st *State) Forget(id string) (found bool) {
	st.Advance()
	is := func(t store.Token) bool { return id == "" || t.ID() == id }
	if st.record.Ends > st.now && is(st.record.Token) {
		st.erase()
		found = true
	}
	if st.abandoned != nil && is(st.abandoned.Token) {
		st.abandoned = nil
		found = true
	}
	if found {
		st.serve()
	}
	return found
}

// Resolve gives an unknown outcome its record. If the outcome is known, or belongs to another
// lease than the ID names, it changes nothing and returns false.
func (st *State) Resolve(id string, data []byte, retention time.Duration) bool {
	st.Advance()
	if !st.unknown() || id != "" && st.abandoned.Token.ID() != id {
		return false
	}
	st.keep(st.abandoned.Token, st.abandoned.Fingerprint, data, Micros(retention))
	st.abandoned = nil
	st.serve()
	return true
}
