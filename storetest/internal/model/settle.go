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
		if errs[i] = x.Validate(); errs[i] != nil {
			if s.b.bug == BatchFails {
				return errs[i]
			}
			continue
		}
		errs[i] = s.settle(x)
	}
	return nil
}

func (s *Store) settle(x dibs.Settlement) error {
	now := s.now()
	if s.b.bug == SettleExpired {
		if st := s.b.keys[s.b.spell(x.Key)]; st != nil && st.holder(x.Token) != nil {
			st.end(x, now)
			return nil
		}
	}
	st := s.b.state(x.Key, now)
	if s.b.bug != GivenUpRedeemerTold {
		st.waiterLeaves(x.Redeems, func(waiter dibs.Token) bool { return waiter == x.Token })
	}
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
		return s.keepAgain(st, x, now)
	case st.untake(x.Token):
		if s.b.bug == TakenPlaceEnds {
			st.holders = nil
			st.handOver(now)
		}
	case st.leave(x.Token):
		if s.b.bug == LoserFrees {
			st.holders = nil
		}
		st.handOver(now)
	case s.b.bug == SettleAnyToken && len(st.holders) > 0:
		st.holders = nil
		st.handOver(now)
	default:
		return dibs.ErrLost
	}
	return nil
}

// keepAgain answers a record of a token that does not hold the key (any more).
func (s *Store) keepAgain(st *state, x dibs.Settlement, now time.Time) error {
	switch {
	case s.b.bug == LateRecord && st.record != nil:
		st.write(x, dibs.Fingerprint{}, now)
	case st.record == nil || st.record.token != x.Token || s.b.bug == KeepNotIdempotent:
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
		if st.b.bug == UndoAbandons {
			st.runOut(i, now)
			break
		}
		st.undo(i, now)
	case dibs.Release:
		if st.b.bug == ReleaseLeavesPlace {
			st.standAgain(l.from, now)
		} else {
			l.giveUpPlace()
		}
		st.remove(x.Token)
		st.gone = &l // for the bug ProgressLeaks
		st.clean()
		if st.b.bug == LockHarmsRecord {
			st.record = nil
		}
	case dibs.Keep:
		l.giveUpPlace()
		st.remove(x.Token)
		st.gone = &l
		st.clean()
		st.keep(x, l.asked, now)
	}
	if st.b.bug == ProgressLeaks && st.gone != nil {
		st.gone.asked = dibs.Fingerprint{} // the leak, and nothing else
	}
	if st.b.bug != NoHandOver {
		st.handOver(now)
	}
}

// keep writes the record and sends the waiters that it answers to read it.
func (st *state) keep(x dibs.Settlement, asked dibs.Fingerprint, now time.Time) {
	if st.b.bug == TornRecord {
		b, k := st.b, x.Key
		go func() { // the second statement
			b.mu.Lock()
			defer b.mu.Unlock()
			b.state(k, now).write(x, asked, now)
		}()
		return
	}
	st.write(x, asked, now)
	if st.b.bug == KeepLeavesWaiters {
		return
	}
	st.queue = slices.DeleteFunc(st.queue, func(p *place) bool {
		if p.claim.MaxAge == 0 {
			return false
		}
		p.wake()
		return true
	})
}

func (st *state) write(x dibs.Settlement, asked dibs.Fingerprint, now time.Time) {
	data := st.b.copy(x.Data)
	if st.b.bug == RecordCut {
		data = data[:min(len(data), 64<<10-1)]
	}
	st.record = &record{token: x.Token, asked: asked, data: data, written: now, ends: now.Add(x.Retention)}
}

// remove takes a holder away.
func (st *state) remove(t dibs.Token) {
	st.holders = slices.DeleteFunc(st.holders, func(l lease) bool { return l.token == t })
}
