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
		return st.record.Of(x.Token, st.now) // this was sent twice, or comes too late
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
		st.leave(x.Token, l.Fingerprint, x.Data, Micros(x.Retention))
	}
	st.holders = slices.DeleteFunc(st.holders, func(other Lease) bool { return other.Token == l.Token })
	switch x.Outcome {
	case dibs.Abandon:
		st.abandon(l, st.now)
	case dibs.Release, dibs.Keep:
		st.clean(l)
	}
}

// abandon notes that a lease, which is no holder any more, ended then without being
// settled.
func (st *State) abandon(l Lease, then int64) {
	l.Abandoned, l.Attempt, l.Ends, l.Seq, l.Heir = true, 1, then, 0, 0
	if st.lost != nil {
		l.Attempt, l.Heir = st.lost.Attempt+1, st.lost.Heir
	}
	if st.saved[l.Fence] {
		l.Heir = l.Fence
	}
	if st.lost = &l; l.Once {
		st.short = st.short || !st.queue.complete
		st.wakeAll(func(*Place) bool { return true })
	}
}

// clean leaves nothing of a lease, which is no holder any more, and of those that were
// abandoned before it.
func (st *State) clean(l Lease) {
	st.deleteAt(l.Seq)
	st.lost = nil
}

// leave writes a record, and wakes the waiters that it may answer.
func (st *State) leave(t dibs.Token, f dibs.Fingerprint, data []byte, retention int64) {
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

// Renew makes a lease last longer, and reports whether the token has one.
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

// ForceRelease ends the leases of a key and forgets its abandoned attempt: all, or the one that
// the ID names. It returns how many it ended.
func (st *State) ForceRelease(id string) (n int) {
	st.Advance()
	is := func(l Lease) bool { return id == "" || l.Token.ID() == id }
	if st.lost != nil && is(*st.lost) {
		n++
	}
	for _, l := range slices.Clone(st.holders) {
		if is(l) {
			st.end(l, &dibs.Settlement{})
			n++
		}
	}
	if n > 0 {
		st.lost = nil
		st.serve()
	}
	return n
}

// Forget deletes the record and forgets an abandoned attempt. It reports whether there
// was anything to forget.
func (st *State) Forget() bool {
	st.Advance()
	found := st.record.Ends > st.now || st.lost != nil
	st.erase()
	st.lost = nil
	st.serve()
	return found
}

// Resolve gives an unknown outcome its record. It reports false, and changes nothing,
// when there is none, or it is not of the attempt that the ID names.
func (st *State) Resolve(id string, data []byte, retention time.Duration) bool {
	st.Advance()
	if !st.unknown() || id != "" && st.lost.Token.ID() != id {
		return false
	}
	st.leave(st.lost.Token, st.lost.Fingerprint, data, Micros(retention))
	st.lost = nil
	st.serve()
	return true
}
