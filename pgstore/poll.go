package pgstore

import (
	"context"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
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

// look tells those who were granted the key, and wakes those who would be answered
// something else now. busy says that somebody still waits.
func (w *waiting) look() (found, busy bool) {
	wants := w.waiters()
	if len(wants) == 0 {
		return false, false
	}
	ctx, cancel := context.WithTimeout(w.s.life, pollLimit)
	defer cancel()
	var due []engine.Turn
	err := w.s.work(ctx, w.s.front, looking, wants, func(b *engine.Batch) {
		due = nil
		for k, tokens := range wants {
			due = append(due, b.State(k).Look(tokens, map[dibs.Token]int{})...)
		}
	})
	if err != nil {
		return false, true // only hints are lost, and the calls tell what is wrong
	}
	for _, t := range due {
		w.mu.Lock()
		delete(w.polled, t.Token) // until it has asked again
		w.mu.Unlock()
		w.listeners.Wake(t.Token, t.Answer)
	}
	return len(due) > 0, true
}

// waiters returns who waits, and forgets those whose places have run out.
func (w *waiting) waiters() engine.Tokens {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, wants := time.Now(), engine.Tokens{}
	for t, p := range w.polled {
		if now.After(p.until) {
			delete(w.polled, t)
		} else {
			wants[p.key] = append(wants[p.key], t)
		}
	}
	return wants
}
