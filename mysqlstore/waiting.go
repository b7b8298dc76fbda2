package mysqlstore

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// waiting tells those who wait in this process that they should ask again, or that
// they hold the key: at once what is done in this process, and what others do when it
// looks. It does not look before somebody waits, nor when nobody does any more.
type waiting struct {
	s       *Store
	telling atomic.Int32 // how many listeners take a grant

	mu        sync.Mutex
	listeners []*listener
	started   bool
	places    map[dibs.Token]*waiter
	more      chan struct{} // has an element when somebody new waits, or is nearer than was known
}

// listener is a client that wants to know.
type listener struct {
	wake func(dibs.Token, dibs.Answer)
}

// waiter is how a token waits.
type waiter struct {
	key   string
	many  bool // the key has several permits
	ahead int
	until time.Time
	seen  int64 // the kind of its place, as last seen; -1: not yet
}

func newWaiting(s *Store) *waiting {
	return &waiting{s: s, places: map[dibs.Token]*waiter{}, more: make(chan struct{}, 1)}
}

// tells reports whether grants can be told.
func (w *waiting) tells() bool { return w.telling.Load() > 0 }

// heard sees to it that those who wait are told when their turn has come. They
// claimed at that time or later.
func (w *waiting) heard(part []int, claims []dibs.Claim, answers []dibs.Answer, asked time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	news := false
	for _, i := range part {
		c, a := &claims[i], &answers[i]
		token, ok := waitsFor(c, a)
		if !ok {
			if len(w.places) > 0 {
				delete(w.places, c.Token)
			}
			continue
		}
		// All who wait ask again, and that alone is nothing new: else the looks would never
		// become rarer.
		p := w.places[token]
		news = news || p == nil || a.Ahead < p.ahead
		w.places[token] = &waiter{
			key: keyOf(c.Key), many: c.Permits > 1, ahead: a.Ahead, until: asked.Add(stands(c)), seen: -1,
		}
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

// waitsFor returns the token by which a claim that was answered so waits: its own,
// or that of the place that it redeems; false when it does not wait to be told.
func waitsFor(c *dibs.Claim, a *dibs.Answer) (dibs.Token, bool) {
	if a.State != dibs.Held || !a.Queued || c.Mode > dibs.Queue {
		return dibs.Token{}, false
	}
	if !c.Redeems.IsZero() {
		return c.Redeems, true
	}
	return c.Token, true
}

// stands returns for how long a claim's place is known to stand.
func stands(c *dibs.Claim) time.Duration {
	if !c.Redeems.IsZero() || c.Place == 0 {
		return redeemerAsks
	}
	return c.Place
}

// redeemerAsks is for how long a token that does not say so is taken to wait:
// longer than until it asks again.
const redeemerAsks = 5 * time.Second

// left forgets those who gave up their places.
func (w *waiting) left(settlements []dibs.Settlement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.places) == 0 {
		return
	}
	for i := range settlements {
		delete(w.places, settlements[i].Token)
	}
}

// told tells those who wait here of turns that have come.
func (w *waiting) told(turns []turn) {
	if len(turns) == 0 {
		return
	}
	w.mu.Lock()
	var here []turn
	for _, t := range turns {
		if w.places[t.token] != nil {
			delete(w.places, t.token) // until it has asked again
			here = append(here, t)
		}
	}
	list := w.listeners
	w.mu.Unlock()
	for _, t := range here {
		for _, l := range list {
			l.wake(t.token, t.answer)
		}
	}
}

// add adds a listener. The list is replaced whole, so that telling copies none.
func (w *waiting) add(l *listener, takes bool) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners = append(slices.Clone(w.listeners), l)
	if takes {
		w.telling.Add(1)
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.listeners = slices.DeleteFunc(slices.Clone(w.listeners), func(other *listener) bool { return other == l })
		if takes {
			w.telling.Add(-1)
		}
	})
}

// Notify implements dibs.Notifier.
func (s *Store) Notify(wake func(dibs.Token)) (stop func()) {
	return s.waiting.add(&listener{func(t dibs.Token, _ dibs.Answer) { wake(t) }}, false)
}

// NotifyGrants implements dibs.GrantNotifier.
func (s *Store) NotifyGrants(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	return s.waiting.add(&listener{wake}, true)
}
