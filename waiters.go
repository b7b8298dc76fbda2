package dibs

import (
	"sync"

	"github.com/dibs-go/dibs/store"
)

// waiters are the waiters of this process, by token.
type waiters struct {
	notified bool // the store wakes waiters
	stop     func()

	mu    sync.Mutex
	woken map[store.Token]chan store.Answer
	early map[store.Token]store.Answer // wake-ups of tokens that have a place and did not enter yet
}

// maxEarly bounds the wake-ups kept for waiters that are about to enter.
const maxEarly = 1024

func newWaiters(s Store) *waiters {
	w := &waiters{
		stop:  func() {},
		woken: make(map[store.Token]chan store.Answer),
		early: make(map[store.Token]store.Answer),
	}
	if n, ok := s.(store.Notifier); ok {
		w.notified = true
		w.stop = n.Notify(w.wake)
	}
	return w
}

// enter returns the channel on which the token's wake-ups arrive: its grant, or the zero
// Answer if it should ask.
func (w *waiters) enter(t store.Token) <-chan store.Answer {
	woken := make(chan store.Answer, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, ok := w.early[t]; ok {
		delete(w.early, t)
		woken <- a
	}
	w.woken[t] = woken
	return woken
}

func (w *waiters) leave(t store.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.woken, t)
}

// wake is called by the store's Notifier. The last wake-up counts.
func (w *waiters) wake(t store.Token, a store.Answer) {
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
