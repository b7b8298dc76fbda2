package engine

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// Settle ends a lease or gives up a place, and reports whether the token had either.
func (st *State) Settle(x *dibs.Settlement) bool {
	st.Advance()
	if l := st.holder(x.Token); l != nil {
		st.end(*l, x)
	} else if x.Outcome == dibs.Keep {
		return st.record.Of(x.Token, st.now) // it was sent twice, or comes too late
	} else if p := st.queue.of(x.Token); p != nil {
		st.queue.remove(p)
	} else {
		return false
	}
	st.serve()
	return true
}

// end ends a holder's lease.
func (st *State) end(l Lease, x *dibs.Settlement) {
	if x.Outcome == dibs.Keep {
		st.keep(x.Token, l.Fingerprint, x.Data, Micros(x.Retention))
	}
	st.holders = slices.DeleteFunc(st.holders, func(other Lease) bool { return other.Token == l.Token })
	switch x.Outcome {
	case dibs.Abandon:
		st.abandon(l, st.now)
	case dibs.Release, dibs.Keep:
		st.clean(l)
	}
}

// abandon counts a lease, which was removed from the holders, as abandoned at that time.
func (st *State) abandon(l Lease, then int64) {
	l.Abandoned, l.Attempt, l.Ends, l.Seq, l.Inherits = true, 1, then, 0, 0
	if st.abandoned != nil {
		l.Attempt, l.Inherits = st.abandoned.Attempt+1, st.abandoned.Inherits
	}
	if st.saved[l.Fence] {
		l.Inherits = l.Fence
	}
	if st.abandoned = &l; l.Once {
		st.short = st.short || !st.queue.complete
		st.wakeAll(func(*Place) bool { return true })
	}
}

// clean deletes what is left of a lease, which was removed from the holders, and forgets the
// leases that were abandoned before it.
func (st *State) clean(l Lease) {
	st.deleteAt(l.Seq)
	st.abandoned = nil
}

// keep writes a record, and wakes the waiters that it may answer.
func (st *State) keep(t dibs.Token, f dibs.Fingerprint, data []byte, retention int64) {
	st.record = Record{Token: t, Written: st.now, Ends: st.now + retention, Fingerprint: f}
	st.step(Step{Does: WriteRecord, Data: data})
	st.short = st.short || !st.queue.complete
	st.wakeAll(func(p *Place) bool { return p.MaxAge > 0 })
}

// erase deletes the record.
func (st *State) erase() {
	if st.record.Ends != 0 {
		st.record = Record{}
		st.step(Step{Does: EraseRecord})
	}
}

// Renew prolongs a lease, and reports whether the token has one.
func (st *State) Renew(r *dibs.Renewal) bool {
	l := st.holder(r.Token)
	if l == nil || l.Ends <= st.now {
		return false
	}
	l.Ends = st.now + Micros(r.TTL)
	if r.Progress != nil {
		st.saved[l.Fence] = true
		st.step(Step{Does: WriteProgress, Fence: l.Fence, Data: r.Progress})
	}
	return true
}

// ForceRelease ends the leases of a key and forgets its abandoned lease: all, or the lease that
// the ID names. It returns how many.
func (st *State) ForceRelease(id string) (n int) {
	st.Advance()
	is := func(l Lease) bool { return id == "" || l.Token.ID() == id }
	if st.abandoned != nil && is(*st.abandoned) {
		n++
	}
	for _, l := range slices.Clone(st.holders) {
		if is(l) {
			st.end(l, &dibs.Settlement{})
			n++
		}
	}
	if n > 0 {
		st.abandoned = nil
		st.serve()
	}
	return n
}

// Forget deletes the record and forgets an abandoned lease. It reports whether there was
// either.
func (st *State) Forget() bool {
	st.Advance()
	found := st.record.Ends > st.now || st.abandoned != nil
	st.erase()
	st.abandoned = nil
	st.serve()
	return found
}

// Resolve gives an unknown outcome its record. If the outcome is known, or belongs to another
// attempt than the ID names, it changes nothing and returns false.
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
