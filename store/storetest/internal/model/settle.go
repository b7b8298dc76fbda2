package model

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for i, x := range settlements {
		if errs[i] = x.Validate(); errs[i] == nil {
			errs[i] = s.settle(x)
		}
	}
	return nil
}

func (s *Store) settle(x store.Settlement) error {
	now := time.Now()
	st := s.b.state(x.Key, now)
	l := st.lease(x.Token)
	if r := st.row(x.Token); r != nil && r.kept && s.b.bug != KeptIsSettled {
		st.drop(r)
	}
	switch {
	case l != nil:
		st.end(l, x, now)
	case x.Outcome == store.Keep:
		if st.record == nil || st.record.token != x.Token {
			return store.ErrLost
		}
		return nil // it was sent before, and only the answer was lost
	case s.b.bug == GivenUpTakesAll && st.row(x.Token) != nil && st.row(x.Token).reserved():
		st.deleteNumber(st.row(x.Token).number)
	case !st.leave(x.Token):
		return store.ErrLost
	}
	st.serve(now)
	return nil
}

// end ends a lease.
func (st *state) end(l *lease, x store.Settlement, now time.Time) {
	switch x.Outcome {
	case store.Abandon:
		l.ends = now
		st.abandon(l)
	case store.Undo:
		st.remove(l)
	default:
		st.clean(l)
		if x.Outcome == store.Keep {
			st.keep(x.Token, l.claim.Fingerprint, x.Data, x.Retention, now)
		}
	}
}

// clean ends a lease that did what it was for.
func (st *state) clean(l *lease) {
	st.remove(l)
	if st.b.bug != CleanEndKeepsPlace {
		st.deleteNumber(l.number)
	}
	st.abandoned = nil
}

// keep writes the record and wakes the waiters that it may answer.
func (st *state) keep(t store.Token, asked store.Fingerprint, data []byte, retention time.Duration, now time.Time) {
	data = st.b.copy(data)
	if st.b.bug == RecordCut {
		data = data[:min(len(data), 64<<10-1)]
	}
	st.record = &record{token: t, asked: asked, data: data, written: now, ends: now.Add(retention)}
	for _, r := range st.rows {
		if r.claim.MaxAge > 0 && !r.reserved() && !r.kept && st.b.bug != KeepWakesOne {
			r.store.wake(r.claim.Token, store.Answer{})
		}
	}
}
