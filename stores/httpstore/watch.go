package httpstore

import (
	"context"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/store"
)

// watch is a claim in a queue that a call in the background looks at, so that its waiter is
// woken when its turn has come. The call changes nothing, so it may be made, lost or made
// twice at any time.
type watch struct {
	claim store.Claim // a look
	until time.Time   // when its place ends unless it is asked for again
	group *group
}

// group is the watches of one call.
type group struct {
	mu      sync.Mutex
	watches map[store.Token]*watch
	cancel  context.CancelFunc // of the call under way
}

// Notify makes the store wake waiters.
func (s *Store) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	return s.listeners.Notify(wake)
}

// watch begins to look at the claims that wait, all in one call, and forgets those that do
// not wait any more.
func (s *Store) watch(claims []store.Claim, answers []store.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.listeners.Any() || s.stopped.Err() != nil {
		return
	}
	var g *group
	for i, c := range claims {
		w := s.watching[c.Token]
		waits := c.Mode == store.Queue && answers[i].Err == nil && answers[i].State == store.Held && answers[i].Queued
		switch {
		case w != nil && waits:
			w.group.mu.Lock()
			w.until = time.Now().Add(c.PlaceTTL)
			w.group.mu.Unlock()
		case w != nil:
			s.remove(w)
		case waits:
			if g == nil {
				g = &group{watches: map[store.Token]*watch{}}
			}
			look := c
			look.Mode, look.Grace = store.Look, 0
			w = &watch{claim: look, until: time.Now().Add(c.PlaceTTL), group: g}
			g.watches[c.Token], s.watching[c.Token] = w, w
		}
	}
	if g != nil {
		s.running.Go(func() { s.look(g) })
	}
}

// unwatch forgets a claim that is settled.
func (s *Store) unwatch(t store.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watching[t]; w != nil {
		s.remove(w)
	}
}

// remove removes a watch. The last one of its group ends the group's call. Called with s.mu
// held.
func (s *Store) remove(w *watch) {
	delete(s.watching, w.claim.Token)
	w.group.mu.Lock()
	defer w.group.mu.Unlock()
	delete(w.group.watches, w.claim.Token)
	if len(w.group.watches) == 0 && w.group.cancel != nil {
		w.group.cancel()
	}
}

// look makes calls for a group until all its claims have been woken or forgotten.
func (s *Store) look(g *group) {
	for {
		ctx, cancel := context.WithTimeout(s.stopped, watchWait+watchTimeout)
		claims := s.begin(g, cancel)
		if len(claims) == 0 {
			cancel()
			return
		}
		answers, _, err := s.claim(ctx, claims, watchWait)
		cancel()
		if s.stopped.Err() != nil {
			return
		}
		if err != nil {
			// The waiters ask by themselves meanwhile.
			_ = backoff.Sleep(s.stopped, watchPause)
			continue
		}
		for i, a := range answers {
			if a.State != "held" {
				s.wakeUp(claims[i].Token)
			}
		}
	}
}

const (
	// watchWait is how long one call looks.
	watchWait = 20 * time.Second
	// watchTimeout is how much later its answer may come.
	watchTimeout = 5 * time.Second
	// watchPause is the pause after a call that failed.
	watchPause = time.Second
)

// begin returns the claims of a group whose places stand, and forgets the others.
func (s *Store) begin(g *group, cancel context.CancelFunc) (claims []store.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancel = cancel
	for t, w := range g.watches {
		if time.Now().After(w.until) {
			delete(g.watches, t)
			delete(s.watching, t)
			continue
		}
		claims = append(claims, w.claim)
	}
	return claims
}

// wakeUp wakes a waiter, which asks for itself.
func (s *Store) wakeUp(t store.Token) {
	s.mu.Lock()
	w := s.watching[t]
	if w != nil {
		s.remove(w)
	}
	s.mu.Unlock()
	if w != nil {
		s.listeners.Wake(t, store.Answer{})
	}
}
