package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs"
)

const (
	// fastPoll to slowPoll is how often the server is asked: often after something
	// happened, and more and more seldom after that.
	fastPoll = 2 * time.Millisecond
	slowPoll = 50 * time.Millisecond
	// eager is how many looks without a find make the next ones rarer.
	eager = 10
	// pollLimit bounds one look.
	pollLimit = 4 * time.Second
)

const turnsSQL = "SELECT i, kind FROM @turns($1, $2)"

var turnsTypes = []uint32{pgtype.ByteaArrayOID, pgtype.ByteaArrayOID}

// poll looks whose turn has come, while somebody waits, until the store is closed.
func (w *waiting) poll() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-w.more:
		case <-w.s.life.Done():
			return
		}
		interval, idle := fastPoll, 0
		for {
			timer.Reset(interval)
			select {
			case <-timer.C:
			case <-w.more: // somebody new
				interval, idle = fastPoll, 0
				continue
			case <-w.s.life.Done():
				return
			}
			found, busy := w.look()
			if !busy {
				break
			}
			if idle++; found {
				interval, idle = fastPoll, 0
			} else if idle >= eager {
				interval, idle = min(2*interval, slowPoll), 0
			}
		}
	}
}

// look wakes those whose place has gone, or has changed since it was last seen.
// busy says that somebody still waits.
func (w *waiting) look() (found, busy bool) {
	tokens, keys := w.waiters()
	if len(tokens) == 0 {
		return false, false
	}
	ctx, cancel := context.WithTimeout(w.s.life, pollLimit)
	defer cancel()
	for len(tokens) > 0 {
		n := min(len(tokens), most)
		kinds, err := w.kinds(ctx, tokens[:n], keys[:n])
		if err != nil {
			return false, true // only hints are lost, and the calls tell what is wrong
		}
		due := w.due(tokens[:n], kinds)
		w.wake(due...)
		found = found || len(due) > 0
		tokens, keys = tokens[n:], keys[n:]
	}
	return found, true
}

// waiters returns who waits, and forgets those whose places have run out.
func (w *waiting) waiters() ([]dibs.Token, []dibs.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	var tokens []dibs.Token
	var keys []dibs.Key
	for t, p := range w.polled {
		if now.After(p.until) {
			delete(w.polled, t)
			continue
		}
		tokens = append(tokens, t)
		keys = append(keys, p.key)
	}
	return tokens, keys
}

// kinds asks of what kind the tokens' places are; -2 for none.
func (w *waiting) kinds(ctx context.Context, tokens []dibs.Token, keys []dibs.Key) ([]int64, error) {
	k, token := newArray(pgtype.ByteaOID, len(keys), 32), newArray(pgtype.ByteaOID, len(keys), 16)
	for i := range keys {
		k.key(keys[i])
		token.bytes(tokens[i][:])
	}
	kinds := make([]int64, len(tokens))
	err := w.s.run(ctx, w.s.front, &call{
		statement: w.s.turns,
		params:    [][]byte{k.encode(), token.encode()},
		reset: func() {
			for i := range kinds {
				kinds[i] = -2
			}
		},
		row: func(r *reading) error {
			i, kind := r.int(), r.int()
			if i >= 1 && int(i) <= len(kinds) {
				kinds[i-1] = kind
			}
			return r.err
		},
	})
	return kinds, err
}

// due takes out those whose turn has come, or may have.
func (w *waiting) due(tokens []dibs.Token, kinds []int64) []dibs.Token {
	w.mu.Lock()
	defer w.mu.Unlock()
	var due []dibs.Token
	for i, t := range tokens {
		p := w.polled[t]
		switch {
		case p == nil:
		case kinds[i] == -2 || kinds[i] == 2 || p.seen >= 0 && p.seen != kinds[i]:
			due = append(due, t)
			delete(w.polled, t) // until it has asked again
		default:
			p.seen = kinds[i]
		}
	}
	return due
}
