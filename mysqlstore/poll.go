package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

const (
	// fastPoll to slowPoll is how often the server is asked: often after something
	// happened, and with each look that finds nothing a little later.
	fastPoll = time.Millisecond
	slowPoll = 8 * time.Millisecond
	// looked is how many tokens one look asks for: those whose turn comes first. Each
	// one has its place known again when it asks.
	looked = 256
	// perPlace is how much later a look may be for each place that comes before the
	// next one of this process, and farPoll how late at most: in a crowd of processes
	// those who are far back leave the server to those whose turn is near.
	perPlace = 3 * time.Millisecond
	farPoll  = 300 * time.Millisecond
	// pollLimit bounds one look.
	pollLimit = 4 * time.Second
)

// poll looks whose turn has come, while somebody waits, until the store is closed.
func (w *waiting) poll() {
	interval, took, at := fastPoll, time.Duration(0), time.Now().Add(time.Hour)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	// Looks that take long, because many wait or the server is busy, are rarer.
	next := func() time.Time { return time.Now().Add(max(interval, 2*took, w.far())) }
	for {
		select {
		case <-w.more: // somebody new, who may be nearer
			interval = fastPoll
			if sooner := next(); sooner.Before(at) {
				at = sooner
			}
		case <-timer.C:
			start := time.Now()
			found, busy := w.look()
			took = time.Since(start)
			if interval = min(interval+interval/50, slowPoll); found {
				interval = fastPoll
			}
			if at = next(); !busy {
				at = start.Add(time.Hour)
			}
		case <-w.s.life.Done():
			return
		}
		timer.Reset(time.Until(at))
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
	ahead := map[dibs.Token]int{}
	err := w.s.work(ctx, w.s.ear, glancing, wants, func(b *engine.Batch) {
		due = nil
		for k, tokens := range wants {
			due = append(due, b.State(k).Look(tokens, ahead)...)
		}
	})
	if err != nil {
		return false, true // only hints are lost, and the calls tell what is wrong
	}
	w.mu.Lock()
	for t, n := range ahead {
		if p := w.places[t]; p != nil {
			p.ahead = n
		}
	}
	w.mu.Unlock()
	w.told(due)
	return len(due) > 0, true
}

// far returns how long the next of those who wait here is likely to do so.
func (w *waiting) far() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	nearest := int(farPoll / perPlace)
	for _, p := range w.places {
		nearest = min(nearest, p.ahead)
	}
	return time.Duration(nearest) * perPlace
}

// waiters returns who waits, those whose turn comes first, and forgets those whose places
// have run out.
func (w *waiting) waiters() engine.Tokens {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	var all []dibs.Token
	for t, p := range w.places {
		if now.After(p.until) {
			delete(w.places, t)
		} else {
			all = append(all, t)
		}
	}
	if len(all) > looked {
		slices.SortFunc(all, func(a, b dibs.Token) int { return cmp.Compare(w.places[a].ahead, w.places[b].ahead) })
		all = all[:looked]
	}
	wants := engine.Tokens{}
	for _, t := range all {
		k := w.places[t].key
		wants[k] = append(wants[k], t)
	}
	return wants
}
