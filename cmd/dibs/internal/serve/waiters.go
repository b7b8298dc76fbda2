package serve

import (
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// waiters are the claims that wait, by token.
type waiters struct {
	// keep makes a pushed grant that nobody waits for last until its client asks. It renews the
	// lease, which does nothing if the client has settled it.
	keep func(store.Renewal)

	mu    sync.Mutex
	calls map[store.Token][]element // of one token there can be several
	gaps  map[store.Token]gap
	swept time.Time
}

// waiting is one call that waits.
type waiting struct {
	signal chan struct{} // has an element when tokens were woken, or one was settled
	left   chan struct{} // closed when the call asks no more

	mu      sync.Mutex
	woken   []int
	settled bool // the client settles one of its tokens
}

// element is a claim of a call that waits.
type element struct {
	call *waiting
	at   int
}

// gap is a claim in the queue whose client is between two calls.
type gap struct {
	key   dibs.Key
	ttl   time.Duration
	until time.Time
}

func newWaiters(keep func(store.Renewal)) *waiters {
	return &waiters{keep: keep, calls: map[store.Token][]element{}, gaps: map[store.Token]gap{}}
}

// enter begins to listen for the tokens of a call.
func (s *waiters) enter(claims []store.Claim) *waiting {
	w := &waiting{signal: make(chan struct{}, 1), left: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range claims {
		c := &claims[i]
		if c.Token.IsZero() {
			continue // a look without a token; a settlement must not end it
		}
		s.calls[c.Token] = append(s.calls[c.Token], element{w, i})
		if c.Mode == store.Queue {
			delete(s.gaps, c.Token)
		}
	}
	return w
}

// leave ends that. Other calls with the same token stay.
func (s *waiters) leave(claims []store.Claim, w *waiting) {
	defer close(w.left)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range claims {
		t := claims[i].Token
		before := len(s.calls[t])
		others := slices.DeleteFunc(s.calls[t], func(e element) bool { return e == element{w, i} })
		if len(others) > 0 {
			s.calls[t] = others
			continue
		}
		delete(s.calls, t)
		if before > 0 {
			s.remember(&claims[i])
		}
	}
	// A wake-up that came after the last question may have been a grant.
	for _, i := range w.due(nil) {
		if c := &claims[i]; c.Mode == store.Queue {
			go s.keep(store.Renewal{Key: c.Key, Token: c.Token, TTL: max(c.PlaceTTL, c.TTL)})
		}
	}
}

// note remembers the claim of an answer that leaves a place in the queue.
func (s *waiters) note(c *store.Claim, a *store.Answer) {
	if c.Mode == store.Look {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Err == nil && a.State == store.Held && a.Queued {
		s.remember(c)
	} else {
		delete(s.gaps, c.Token)
	}
}

// settled ends all waits for a token that its client settles: after settled no call asks for it,
// because that would take a place for nobody.
func (s *waiters) settled(t store.Token) {
	s.mu.Lock()
	calls := slices.Clone(s.calls[t])
	delete(s.gaps, t)
	s.mu.Unlock()
	if len(calls) == 0 {
		return
	}
	for _, e := range calls {
		e.call.settle()
	}
	for _, e := range calls {
		<-e.call.left
	}
	s.mu.Lock()
	delete(s.gaps, t)
	s.mu.Unlock()
}

// remember is called with the lock held.
func (s *waiters) remember(c *store.Claim) {
	if c.Mode != store.Queue {
		return
	}
	now := time.Now()
	if now.Sub(s.swept) > time.Second {
		s.swept = now
		for t, g := range s.gaps {
			if now.After(g.until) {
				delete(s.gaps, t)
			}
		}
	}
	s.gaps[c.Token] = gap{c.Key, c.TTL, now.Add(c.PlaceTTL)}
}

// wake is called by the store's Notifier. The call that waits asks again. If the wake-up is a
// grant and the client is between two calls, the grant is made to last as long as the place
// would have, because a pushed grant lasts a second only. It lasts for the claim's TTL at least:
// the client may ask before the renewal is done, here or at another server, and then counts on
// its TTL.
func (s *waiters) wake(t store.Token, a store.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock() // so that a call that leaves has all its wake-ups
	calls, g := s.calls[t], s.gaps[t]
	for _, e := range calls {
		e.call.wake(e.at)
	}
	switch left := time.Until(g.until); {
	case len(calls) > 0:
	case a.State == store.Granted && left > 0:
		go s.keep(store.Renewal{Key: g.key, Token: t, TTL: max(left, g.ttl)})
	}
}

func (w *waiting) wake(i int) {
	w.mu.Lock()
	w.woken = append(w.woken, i)
	w.mu.Unlock()
	w.notify()
}

// settle makes the call end.
func (w *waiting) settle() {
	w.mu.Lock()
	w.settled = true
	w.mu.Unlock()
	w.notify()
}

func (w *waiting) notify() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (w *waiting) isSettled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.settled
}

// due appends the claims that were woken since the last call.
func (w *waiting) due(to []int) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range w.woken {
		if !slices.Contains(to, i) {
			to = append(to, i)
		}
	}
	w.woken = w.woken[:0]
	return to
}
