package dibs

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// waiters knows who waits in this process, by token.
type waiters struct {
	notified bool
	stop     func()

	mu    sync.Mutex
	woken map[Token][]chan Answer // several redeem one place, at worst
	// early holds wake-ups for tokens that have a place but did not enter yet.
	early map[Token]Answer
}

// maxEarly bounds the wake-ups kept for waiters that are about to enter.
const maxEarly = 1024

func newWaiters(store Store) *waiters {
	w := &waiters{
		stop:  func() {},
		woken: make(map[Token][]chan Answer),
		early: make(map[Token]Answer),
	}
	switch n := store.(type) {
	case GrantNotifier:
		w.notified = true
		w.stop = n.NotifyGrants(w.wake)
	case Notifier:
		w.notified = true
		w.stop = n.Notify(func(t Token) { w.wake(t, Answer{}) })
	}
	return w
}

// enter returns the channel on which the wake-ups of a token arrive: its grant, or the
// zero Answer, which says that it should ask.
func (w *waiters) enter(t Token) chan Answer {
	woken := make(chan Answer, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, ok := w.early[t]; ok {
		delete(w.early, t)
		woken <- a
	}
	w.woken[t] = append(w.woken[t], woken)
	return woken
}

func (w *waiters) leave(t Token, woken chan Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.DeleteFunc(w.woken[t], func(c chan Answer) bool { return c == woken })
	if len(all) > 0 {
		w.woken[t] = all
	} else {
		delete(w.woken, t)
	}
}

// putBack has the waiter hear again what it was not ready for.
func (w *waiters) putBack(woken chan Answer, unread []Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range unread {
		nudge(woken, a)
	}
}

// nudge leaves a wake-up if none is there, and a grant in the place of any. The caller
// has the lock.
func nudge(woken chan Answer, a Answer) {
	select {
	case woken <- a:
		return
	default:
	}
	if a.State != Granted {
		return
	}
	select {
	case <-woken:
	default:
	}
	woken <- a
}

// wake is what the store's Notifier calls.
func (w *waiters) wake(t Token, a Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.woken[t]
	if len(all) == 0 {
		if len(w.early) >= maxEarly {
			clear(w.early) // hints: whoever loses one asks soon anyway
		}
		w.early[t] = a
		return
	}
	for _, woken := range all {
		nudge(woken, a)
	}
}

// pace says when a waiter with this answer should ask again, how long its place
// should stand, and how long to wait after that where nothing wakes it.
func (w *waiters) pace(a Answer, poll time.Duration) (interval, place, nextPoll time.Duration) {
	interval, place = askNear, placeNear
	if a.State == PermitsDiffer { // nobody wakes whoever has no place
		return poll/2 + rand.N(poll), place, min(2*poll, askNear)
	}
	if w.notified && a.Ahead >= farAhead {
		interval, place = askFar, placeFar
	}
	if a.Ahead == 0 && a.Left > 0 {
		// What stands in the way can run out then.
		interval = min(interval, max(a.Left+time.Millisecond, pollMin))
	}
	if !w.notified {
		interval = min(interval, poll*time.Duration(1+min(a.Ahead, farAhead)))
		poll = min(poll+poll/2, pollMax)
	}
	return interval, place, poll
}
