package remote

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

const (
	// maxPolled is how many tokens one poll asks for: those with the fewest places ahead.
	maxPolled = 256
	// perPlace is how much later a poll may be for each place ahead of the next waiter of
	// this process, and maxDelay how much later at most. So in a crowd of processes, those
	// whose waiters are far back leave the server to the others.
	perPlace = 3 * time.Millisecond
	maxDelay = 300 * time.Millisecond
	// pollLimit bounds one poll.
	pollLimit = 4 * time.Second
)

// waiters are the waiters of this process. Calls of this process wake them at once, and polls find
// out what other processes do. There are no polls without waiters, or while the server pushes
// grants.
type waiters struct {
	s *Store

	mu      sync.Mutex
	polling bool
	polled  map[store.Token]*polled
	more    chan struct{} // has an element when a waiter is new, or nearer than was known
	changed chan struct{} // has an element when the server told of a change
}

// polled is a waiter whose turn is polled for.
type polled struct {
	key   string
	ahead int
	until time.Time
}

func newWaiters(s *Store) *waiters {
	return &waiters{s: s, polled: map[store.Token]*polled{}, more: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// process returns the number that grants of this process are pushed to, or 0.
func (w *waiters) process() int64 {
	if !w.s.server.Listeners.Any() {
		return 0
	}
	return w.s.server.Process()
}

// claimed notes which claims wait. They were made at that time, from that process.
func (w *waiters) claimed(c *call, claims []store.Claim, answers []store.Answer, at time.Time, process int64) {
	listens := w.s.server.Listens != nil && w.s.server.Listens()
	if listens && process != 0 {
		return
	}
	var unreached []store.Token
	news := false
	w.mu.Lock()
	for _, i := range c.valid {
		x, a := &claims[i], &answers[i]
		switch {
		case x.Mode != store.Queue || a.State != store.Held:
			delete(w.polled, x.Token)
		case listens:
			unreached = append(unreached, x.Token)
		default:
			// A waiter that asks again is not news: else polls would never become rarer.
			p := w.polled[x.Token]
			news = news || p == nil || a.Ahead < p.ahead
			w.polled[x.Token] = &polled{key: c.keys[i], ahead: a.Ahead, until: at.Add(x.PlaceTTL)}
		}
	}
	if news && !w.polling {
		w.polling = true
		w.s.server.Go(w.poll)
	}
	w.mu.Unlock()
	if len(unreached) > 0 {
		w.s.server.Unreached(unreached)
	}
	if news {
		signal(w.more)
	}
}

// Changed has this process poll soon: the server told of a change of a key that it waits for.
func Changed(s *Store) { signal(s.waiters.changed) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// settled forgets the waiters that gave up their places.
func (w *waiters) settled(settlements []store.Settlement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range settlements {
		delete(w.polled, settlements[i].Token)
	}
}

// wake wakes polled waiters. They are polled again when they have asked.
func (w *waiters) wake(all []engine.WakeUp) {
	if len(all) == 0 {
		return
	}
	w.mu.Lock()
	var here []engine.WakeUp
	for _, t := range all {
		if w.polled[t.Token] != nil {
			delete(w.polled, t.Token)
			here = append(here, t)
		}
	}
	w.mu.Unlock()
	for _, t := range here {
		w.s.server.Listeners.Wake(t.Token, t.Answer)
	}
}

// poll polls while there are waiters, until ctx ends.
func (w *waiters) poll(ctx context.Context) {
	shortest, longest := w.s.server.PollMin, w.s.server.PollMax
	interval, took, at := shortest, time.Duration(0), time.Now().Add(time.Hour)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	// Polls that take long are rarer, because there are many waiters or the server is busy.
	next := func(least time.Duration) time.Time { return time.Now().Add(max(least, 2*took, w.delay())) }
	sooner := func(t time.Time) {
		if t.Before(at) {
			at = t
		}
	}
	for {
		select {
		case <-w.changed:
			sooner(next(0))
		case <-w.more:
			interval = shortest
			sooner(next(interval))
		case <-timer.C:
			start := time.Now()
			found, busy := w.pollOnce(ctx)
			took = time.Since(start)
			if interval = min(interval+interval/50, longest); found {
				interval = shortest
			}
			if at = next(interval); !busy {
				at = start.Add(time.Hour)
			}
		case <-ctx.Done():
			return
		}
		timer.Reset(time.Until(at))
	}
}

// pollOnce passes grants on, and wakes waiters whose answer has changed. busy says that there are
// waiters.
func (w *waiters) pollOnce(ctx context.Context) (found, busy bool) {
	wants := w.next()
	if len(wants) == 0 {
		return false, false
	}
	ctx, cancel := context.WithTimeout(ctx, pollLimit)
	defer cancel()
	var due []engine.WakeUp
	ahead := map[store.Token]int{}
	err := w.s.work(ctx, Polling, wants, func(b *engine.Batch) {
		due = nil
		for k, tokens := range wants {
			due = append(due, b.State(k).Due(tokens, ahead)...)
		}
	})
	if err != nil {
		return false, true // the waiters ask anyway, and their calls return what is wrong
	}
	w.mu.Lock()
	for t, n := range ahead {
		if p := w.polled[t]; p != nil {
			p.ahead = n
		}
	}
	w.mu.Unlock()
	w.wake(due)
	return len(due) > 0, true
}

// delay returns how long the nearest waiter of this process is likely to wait.
func (w *waiters) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	nearest := int(maxDelay / perPlace)
	for _, p := range w.polled {
		nearest = min(nearest, p.ahead)
	}
	return time.Duration(nearest) * perPlace
}

// next returns the waiters that the next poll asks for, and forgets those whose places have
// expired.
func (w *waiters) next() engine.Tokens {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	var all []store.Token
	for t, p := range w.polled {
		if now.After(p.until) {
			delete(w.polled, t)
		} else {
			all = append(all, t)
		}
	}
	if len(all) > maxPolled {
		slices.SortFunc(all, func(a, b store.Token) int { return cmp.Compare(w.polled[a].ahead, w.polled[b].ahead) })
		all = all[:maxPolled]
	}
	wants := engine.Tokens{}
	for _, t := range all {
		k := w.polled[t].key
		wants[k] = append(wants[k], t)
	}
	return wants
}
