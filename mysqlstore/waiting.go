package mysqlstore

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
	"github.com/dibs-go/dibs/internal/engine"
)

// waiting tells those who wait in this process that they should ask again, or that
// they hold the key: at once what is done in this process, and what others do when it
// looks. It does not look before somebody waits, nor when nobody does any more.
type waiting struct {
	s         *Store
	listeners backend.Listeners

	mu      sync.Mutex
	started bool
	places  map[dibs.Token]*waiter
	more    chan struct{} // has an element when somebody new waits, or is nearer than was known
}

// waiter is how a token waits.
type waiter struct {
	key   string
	ahead int
	until time.Time
}

func newWaiting(s *Store) *waiting {
	return &waiting{s: s, places: map[dibs.Token]*waiter{}, more: make(chan struct{}, 1)}
}

// process returns what stands for a process that takes grants that are told, or 0 if
// this one does not.
func (w *waiting) process() int64 {
	if w.listeners.Any() {
		return 1
	}
	return 0
}

// heard sees to it that those who wait are told when their turn has come. They
// claimed at that time or later.
func (w *waiting) heard(e *engine.Call, claims []dibs.Claim, answers []dibs.Answer, asked time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	news := false
	for _, i := range e.Valid() {
		c, a := &claims[i], &answers[i]
		if c.Mode != dibs.Queue || a.State != dibs.Held {
			if len(w.places) > 0 {
				delete(w.places, c.Token)
			}
			continue
		}
		// All who wait ask again, and that alone is nothing new: else the looks would never
		// become rarer.
		p := w.places[c.Token]
		news = news || p == nil || a.Ahead < p.ahead
		w.places[c.Token] = &waiter{key: e.Keys[i], ahead: a.Ahead, until: asked.Add(c.Stay)}
	}
	if !news || w.s.life.Err() != nil {
		return
	}
	if !w.started {
		w.started = true
		w.s.background.Go(w.poll)
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// left forgets those who gave up their places.
func (w *waiting) left(settlements []dibs.Settlement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range settlements {
		delete(w.places, settlements[i].Token)
	}
}

// told tells those who wait here of turns that have come.
func (w *waiting) told(turns []engine.Turn) {
	if len(turns) == 0 {
		return
	}
	w.mu.Lock()
	var here []engine.Turn
	for _, t := range turns {
		if w.places[t.Token] != nil {
			delete(w.places, t.Token) // until it has asked again
			here = append(here, t)
		}
	}
	w.mu.Unlock()
	for _, t := range here {
		w.listeners.Wake(t.Token, t.Answer)
	}
}

// Notify implements dibs.Notifier. The store tells grants.
func (s *Store) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	return s.waiting.listeners.Notify(wake)
}
