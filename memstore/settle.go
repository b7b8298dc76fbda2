package memstore

import (
	"bytes"
	"time"

	"github.com/dibs-go/dibs"
)

// renew answers one valid renewal.
func (sh *shard) renew(hash uint64, r *dibs.Renewal, now instant) error {
	e := sh.find(hash, r.Key)
	if e == nil {
		return dibs.ErrLost
	}
	sh.advance(e, now)
	err := sh.prolong(e, r, now)
	sh.finish(e, now)
	return err
}

func (sh *shard) prolong(e *entry, r *dibs.Renewal, now instant) error {
	l := e.holder(r.Token)
	if l == nil {
		return dibs.ErrLost
	}
	if r.Progress != nil {
		if !sh.store.take(len(r.Progress) - len(l.progress)) {
			return errNoBytes
		}
		// Never into the old one's memory: an answer may share it.
		l.progress = append(make([]byte, 0, len(r.Progress)), r.Progress...)
	}
	e.prolong(l, now.after(r.TTL))
	return nil
}

// settle answers one valid settlement.
func (sh *shard) settle(hash uint64, x *dibs.Settlement, now instant) error {
	e := sh.find(hash, x.Key)
	if e == nil {
		return dibs.ErrLost
	}
	sh.advance(e, now)
	err := sh.end(e, x, now)
	if err == nil {
		sh.serve(e, now)
	}
	sh.finish(e, now)
	return err
}

func (sh *shard) end(e *entry, x *dibs.Settlement, now instant) error {
	if l := e.holder(x.Token); l != nil {
		return sh.endLease(e, l, x, now)
	}
	if x.Outcome == dibs.Keep {
		// This is a settlement sent twice, or one that comes too late.
		if e.record != nil && e.record.token == x.Token {
			return nil
		}
		return dibs.ErrLost
	}
	if e.queue != nil {
		if p := sh.place(e.queue, x.Token, now); p != nil {
			sh.giveUp(e.queue, p, x.Token)
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

// release ends a lease cleanly, and with it the place that it was granted at.
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
			sh.drop(w)
		}
		if !gone {
			e.queue.tidy(p)
		}
	}
	sh.drop(l)
}

// leavePlace leaves the place at which a lease was granted that has ended in another way.
func (sh *shard) leavePlace(e *entry, l *attempt) {
	if l.place != nil {
		e.queue.tidy(l.place)
		l.place = nil
	}
}

// keep writes the key's record and sends those whom it answers to read it. It
// reports false, and does nothing, when there is no room for it.
func (sh *shard) keep(e *entry, t dibs.Token, f dibs.Fingerprint, data []byte, retention time.Duration, now instant) bool {
	size := len(data)
	if e.record != nil {
		size -= len(e.record.data)
	}
	if !sh.store.take(size) {
		return false
	}
	r := e.record
	if r == nil {
		if r = sh.records.get(); r == nil {
			r = new(record)
		}
		e.record = r
	}
	*r = record{token: t, fingerprint: f, data: bytes.Clone(data), written: now, until: now.after(retention)}
	if q := e.queue; q != nil {
		for _, p := range q.places[q.head:] {
			if p == nil {
				continue
			}
			for w := p.waiters; w != nil; w = w.next {
				if w.maxAge > 0 {
					w.woken = true
					sh.wake(w.token)
				}
			}
		}
	}
	return true
}
