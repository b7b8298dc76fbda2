package mysqlstore

import (
	"time"

	"github.com/dibs-go/dibs"
)

// settle ends a lease or gives up a place, and reports whether the token had either.
func (st *state) settle(x *dibs.Settlement) (bool, error) {
	if err := st.advance(); err != nil {
		return false, err
	}
	own := st.holder(x.Token)
	switch {
	case own != nil && !own.offered:
		st.end(*own, x)
	case x.Outcome == dibs.Keep:
		// Who does not know that it holds the key has nothing to keep: this was sent
		// twice, or comes too late.
		return st.record.ends > st.now && st.record.token == x.Token, nil
	case own != nil: // it gives up a turn that it may not know of
		st.takeOut(x.Token)
	default:
		if by := st.takenBy(x.Token); by != nil { // its place is given up, and the lease stays
			st.giveUp(by.seq)
			by.seq = 0
			return true, nil
		}
		p := st.own(x.Token)
		if p == nil {
			return false, nil
		}
		st.queue.remove(p.seq)
	}
	return true, st.handOver()
}

// end ends a holder's lease.
func (st *state) end(own lease, x *dibs.Settlement) {
	if x.Outcome == dibs.Keep {
		st.leave(x.Token, own.fingerprint, x.Data, micros(x.Retention))
	}
	st.takeOut(own.token)
	switch x.Outcome {
	case dibs.Abandon:
		st.abandon(own, st.now)
	case dibs.Undo:
		st.undo(own)
	default:
		st.clean(own.token)
		st.giveUp(own.seq)
	}
}

// renew makes a lease last longer, and reports whether the token has one.
func (st *state) renew(r *dibs.Renewal) bool {
	own := st.holder(r.Token)
	if own == nil || own.offered || own.ends <= st.now {
		return false
	}
	own.ends = st.now + micros(r.TTL)
	if r.Progress != nil {
		st.save(r.Token, r.Progress)
	}
	return true
}

// evict ends leases, whoever holds them, and forgets an abandoned attempt: all, or the
// one that the ID names. It returns how many were ended.
func (st *state) evict(id string) (n int, err error) {
	if err := st.advance(); err != nil {
		return 0, err
	}
	for i := 0; i < len(st.holders); {
		if id != "" && st.holders[i].token.ID() != id {
			i++
			continue
		}
		l := st.takeOut(st.holders[i].token)
		st.drop(l.token)
		st.giveUp(l.seq)
		n++
	}
	if st.lost != nil && (id == "" || st.lost.token.ID() == id) {
		n++
	}
	if n == 0 {
		return 0, nil
	}
	st.clean(dibs.Token{})
	return n, st.handOver()
}

// forget deletes the record and forgets an abandoned attempt. It reports whether there
// was anything to forget.
func (st *state) forget() (bool, error) {
	if err := st.advance(); err != nil {
		return false, err
	}
	found := st.record.ends > st.now
	st.erase()
	if st.lost == nil {
		return found, nil
	}
	st.clean(dibs.Token{})
	return true, st.handOver()
}

// resolve gives an unknown outcome its record. It reports false, and changes nothing,
// when there is none, or it is not of the attempt that the ID names.
func (st *state) resolve(id string, data []byte, retention time.Duration) (bool, error) {
	if err := st.advance(); err != nil {
		return false, err
	}
	if !st.unknown() || id != "" && st.lost.token.ID() != id {
		return false, nil
	}
	lost := *st.lost
	st.leave(lost.token, lost.fingerprint, data, micros(retention))
	st.clean(dibs.Token{})
	return true, st.handOver()
}
