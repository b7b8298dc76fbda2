package mysqlstore

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// settle ends a lease or gives up a place, and reports whether the token had either.
func (st *state) settle(x *dibs.Settlement) bool {
	st.advance()
	if l := st.holder(x.Token); l != nil {
		st.end(*l, x)
	} else if x.Outcome == dibs.Keep {
		return st.record.of(x.Token, st.now) // this was sent twice, or comes too late
	} else if p := st.queue.of(x.Token); p != nil {
		st.queue.remove(p)
	} else {
		return false
	}
	st.serve()
	return true
}

// end ends a holder's lease.
func (st *state) end(l lease, x *dibs.Settlement) {
	if x.Outcome == dibs.Keep {
		st.leave(x.Token, l.fingerprint, x.Data, micros(x.Retention))
	}
	st.holders = slices.DeleteFunc(st.holders, func(other lease) bool { return other.token == l.token })
	switch x.Outcome {
	case dibs.Abandon:
		st.abandon(l, st.now)
	case dibs.Release, dibs.Keep:
		st.clean(l)
	}
}

// abandon notes that a lease, which is no holder any more, ended then without being
// settled.
func (st *state) abandon(l lease, then int64) {
	l.abandoned, l.attempt, l.ends, l.seq, l.heir = true, 1, then, 0, 0
	if st.lost != nil {
		l.attempt, l.heir = st.lost.attempt+1, st.lost.heir
	}
	if st.saved[l.fence] {
		l.heir = l.fence
	}
	if st.lost = &l; l.once {
		st.wakeAll(func(*place) bool { return true })
	}
}

// clean leaves nothing of a lease, which is no holder any more, and of those that were
// abandoned before it.
func (st *state) clean(l lease) {
	st.deleteAt(l.seq)
	st.lost = nil
}

// leave writes a record, and has those read it whom it may answer.
func (st *state) leave(t dibs.Token, f dibs.Fingerprint, data []byte, retention int64) {
	st.record = record{token: t, written: st.now, ends: st.now + retention, fingerprint: f}
	st.writes.record(data)
	st.wakeAll(func(p *place) bool { return p.maxAge > 0 })
}

// erase deletes the record.
func (st *state) erase() {
	if st.record.ends != 0 {
		st.record = record{}
		st.writes.eraseRecord()
	}
}

// renew makes a lease last longer, and reports whether the token has one.
func (st *state) renew(r *dibs.Renewal) bool {
	l := st.holder(r.Token)
	if l == nil || l.ends <= st.now {
		return false
	}
	l.ends = st.now + micros(r.TTL)
	if r.Progress != nil {
		st.saved[l.fence] = true
		st.writes.progress(l.fence, r.Progress)
	}
	return true
}

// evict ends leases, whoever holds them, and forgets an abandoned attempt: all, or the
// one that the ID names. It returns how many were ended.
func (st *state) evict(id string) (n int) {
	st.advance()
	is := func(l lease) bool { return id == "" || l.token.ID() == id }
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

// forget deletes the record and forgets an abandoned attempt. It reports whether there
// was anything to forget.
func (st *state) forget() bool {
	st.advance()
	found := st.record.ends > st.now || st.lost != nil
	st.erase()
	st.lost = nil
	st.serve()
	return found
}

// resolve gives an unknown outcome its record. It reports false, and changes nothing,
// when there is none, or it is not of the attempt that the ID names.
func (st *state) resolve(id string, data []byte, retention time.Duration) bool {
	st.advance()
	if !st.unknown() || id != "" && st.lost.token.ID() != id {
		return false
	}
	st.leave(st.lost.token, st.lost.fingerprint, data, micros(retention))
	st.lost = nil
	st.serve()
	return true
}
