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
	if l == nil || l.offered {
		return dibs.ErrLost // an offer is confirmed by a claim, which tells the fence
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
	sh.finish(e, now)
	return err
}

func (sh *shard) end(e *entry, x *dibs.Settlement, now instant) error {
	l := e.holder(x.Token)
	switch {
	case l != nil && !l.offered:
		return sh.endLease(e, l, x, now)
	case x.Outcome == dibs.Keep:
		// Who does not know that it holds the key has nothing to keep: this is
		// a settlement sent twice, or one that comes too late.
		if e.record != nil && e.record.token == x.Token {
			return nil
		}
		return dibs.ErrLost
	case l != nil:
		// It gives up a turn that it may not have heard of. What was abandoned
		// before stays abandoned.
		e.removeLease(l)
		sh.drop(l)
		sh.handOver(e, now)
		return nil
	case sh.giveUpTaken(e, x.Token), sh.leave(e, x.Token, now):
		return nil
	}
	return dibs.ErrLost
}

// endLease ends a lease and hands the key over.
func (sh *shard) endLease(e *entry, l *attempt, x *dibs.Settlement, now instant) error {
	if x.Outcome == dibs.Keep {
		if int64(len(x.Data)) > sh.store.options.MaxBytes {
			return errTooManyBytes
		}
		if !sh.keep(e, l.token, l.fingerprint, x.Data, x.Retention, now) {
			return errNoBytes
		}
	}
	e.removeLease(l)
	switch x.Outcome {
	case dibs.Abandon:
		sh.standAgain(e, l, now, now)
		sh.abandon(e, l, now)
	case dibs.Undo:
		sh.standAgain(e, l, now, now)
		sh.undo(e, l)
	default:
		sh.clean(e)
		sh.drop(l)
	}
	sh.handOver(e, now)
	return nil
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
		q.removeAll(func(p *attempt) bool { return p.maxAge > 0 }, func(p *attempt) {
			sh.wake(p.token)
			sh.drop(p)
		})
		if q.waiting == 0 {
			sh.dropQueue(e)
		}
	}
	return true
}
