package model

import (
	"context"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// Settle implements dibs.Store.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
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

func (s *Store) settle(x dibs.Settlement) error {
	now := time.Now()
	st := s.b.state(x.Key, now)
	l := st.holder(x.Token)
	switch {
	case l != nil && l.offered && s.b.bug != TurnCleans:
		// It gives up a turn that it may not have heard of. What was abandoned
		// before stays abandoned.
		st.remove(x.Token)
		st.handOver(now)
	case l != nil:
		st.end(x, now)
	case x.Outcome == dibs.Keep:
		if st.record == nil || st.record.token != x.Token {
			return dibs.ErrLost
		}
		// It was sent before, and only the answer was lost.
	case st.untake(x.Token):
	case st.leave(x.Token):
		st.handOver(now)
	default:
		return dibs.ErrLost
	}
	return nil
}

// end ends the lease of a holder, and hands the key over.
func (st *state) end(x dibs.Settlement, now time.Time) {
	i := slices.IndexFunc(st.holders, func(l lease) bool { return l.token == x.Token })
	l := st.holders[i]
	switch x.Outcome {
	case dibs.Abandon:
		st.runOut(i, now)
	case dibs.Undo:
		st.undo(i, now)
	default:
		l.giveUpPlace()
		st.remove(x.Token)
		st.clean()
		if x.Outcome == dibs.Keep {
			st.keep(x, l.asked, now)
		}
	}
	st.handOver(now)
}

// keep writes the record and sends the waiters that it answers to read it.
func (st *state) keep(x dibs.Settlement, asked dibs.Fingerprint, now time.Time) {
	data := st.b.copy(x.Data)
	if st.b.bug == RecordCut {
		data = data[:min(len(data), 64<<10-1)]
	}
	st.record = &record{token: x.Token, asked: asked, data: data, written: now, ends: now.Add(x.Retention)}
	st.queue = slices.DeleteFunc(st.queue, func(p *place) bool {
		if p.claim.MaxAge == 0 {
			return false
		}
		p.wake()
		return true
	})
}

// remove takes a holder away.
func (st *state) remove(t dibs.Token) {
	st.holders = slices.DeleteFunc(st.holders, func(l lease) bool { return l.token == t })
}
