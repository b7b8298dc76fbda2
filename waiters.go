package dibs

import "sync"

// waiters are the waiters of this process, by token.
type waiters struct {
	notified bool // the store wakes waiters
	stop     func()

	mu    sync.Mutex
	woken map[Token]chan Answer
	early map[Token]Answer // wake-ups of tokens that have a place and did not enter yet
}

// maxEarly bounds the wake-ups kept for waiters that are about to enter.
const maxEarly = 1024

func newWaiters(s Store) *waiters {
	w := &waiters{
		stop:  func() {},
		woken: make(map[Token]chan Answer),
		early: make(map[Token]Answer),
	}
	if n, ok := s.(Notifier); ok {
		w.notified = true
		w.stop = n.Notify(w.wake)
	}
	return w
}

// enter returns the channel on which the token's wake-ups arrive: its grant, or the zero
// Answer if it should ask.
func (w *waiters) enter(t Token) <-chan Answer {
	woken := make(chan Answer, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, ok := w.early[t]; ok {
		delete(w.early, t)
		woken <- a
	}
	w.woken[t] = woken
	return woken
}

func (w *waiters) leave(t Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.woken, t)
}

// wake is called by the store's Notifier. The last wake-up counts.
func (w *waiters) wake(t Token, a Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	woken, ok := w.woken[t]
	if !ok {
		if len(w.early) >= maxEarly {
			clear(w.early) // a waiter that loses its wake-up asks soon anyway
		}
		w.early[t] = a
		return
	}
	select {
	case <-woken:
	default:
	}
	woken <- a
}
