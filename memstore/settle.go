package memstore

import (
	"bytes"
	"time"

	"github.com/dibs-go/dibs"
)

// renew answers one valid renewal.
func (sh *shard) renew(e *entry, r *dibs.Renewal, now instant) error {
	l := e.holder(r.Token)
	if l == nil {
		return dibs.ErrLost
	}
	if r.Progress != nil {
		if !sh.store.take(len(r.Progress) - len(l.progress)) {
			return errNoBytes
		}
		l.progress = bytes.Clone(r.Progress) // in new memory, because an answer may share the old
	}
	e.prolong(l, now.after(r.TTL))
	return nil
}

// settle answers one valid settlement.
func (sh *shard) settle(e *entry, x *dibs.Settlement, now instant) error {
	err := sh.end(e, x, now)
	if err == nil {
		sh.serve(e, now)
	}
	return err
}

func (sh *shard) end(e *entry, x *dibs.Settlement, now instant) error {
	if l := e.holder(x.Token); l != nil {
		return sh.endLease(e, l, x, now)
	}
	if x.Outcome == dibs.Keep {
		// A settlement that was sent twice, or one that came too late.
		if e.record != nil && e.record.token == x.Token {
			return nil
		}
		return dibs.ErrLost
	}
	if e.queue != nil {
		if p := e.queue.place(x.Token, now); p != nil {
			e.queue.giveUpToken(p, x.Token)
			return nil
		}
	}
	return dibs.ErrLost
}

// endLease ends a lease.
func (sh *shard) endLease(e *entry, l *attempt, x *dibs.Settlement, now instant) error {
	if x.Outcome == dibs.Keep {
		if int64(len(x.Data)) > sh.store.options.MaxBytes {
			return errTooManyBytes
		}
		if !sh.keep(e, l.token, l.fingerprint, x.Data, x.Retention, now) {
			return errNoBytes
		}
	}
	switch x.Outcome {
	case dibs.Abandon:
		sh.abandon(e, l, now)
	case dibs.Undo:
		e.removeLease(l)
		sh.leavePlace(e, l)
		sh.drop(l)
	default:
		sh.clean(e)
		sh.release(e, l)
	}
	return nil
}

// release ends a lease cleanly, together with the place at which it was granted.
func (sh *shard) release(e *entry, l *attempt) {
	e.removeLease(l)
	if p := l.place; p != nil {
		gone := false
		if p.reserved {
			gone = e.queue.giveUp(p)
		}
		for !gone && p.waiters != nil {
			w := p.waiters
			sh.wake(w.token)
			gone = e.queue.leave(w)
		}
		if !gone {
			e.queue.tidy(p)
		}
	}
	sh.drop(l)
}

// leavePlace frees the place at which a lease was granted that did not end cleanly.
func (sh *shard) leavePlace(e *entry, l *attempt) {
	if l.place != nil {
		e.queue.tidy(l.place)
		l.place = nil
	}
}

// keep writes the key's record and wakes the waiters that it may answer. Without room it
// does nothing and returns false.
func (sh *shard) keep(e *entry, t dibs.Token, f dibs.Fingerprint, data []byte, retention time.Duration, now instant) bool {
	size := len(data)
	if e.record != nil {
		size -= len(e.record.data)
	}
	if !sh.store.take(size) {
		return false
	}
	e.record = &record{token: t, fingerprint: f, data: bytes.Clone(data), written: now, until: now.after(retention)}
	for w := range e.queue.waiters() {
		if w.maxAge > 0 {
			w.woken = true
			sh.wake(w.token)
		}
	}
	return true
}
