package model

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// listener is one that wants to know.
type listener struct {
	wake  func(dibs.Token, dibs.Answer)
	takes bool // a grant, and not only the word to ask again
}

// Notify implements dibs.Notifier.
func (s *Store) Notify(wake func(dibs.Token)) (stop func()) {
	return s.listen(listener{wake: func(t dibs.Token, _ dibs.Answer) { wake(t) }})
}

// NotifyGrants implements dibs.GrantNotifier.
func (s *Store) NotifyGrants(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	return s.listen(listener{wake: wake, takes: true})
}

func (s *Store) listen(l listener) (stop func()) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.listened++
	number := s.listened
	s.listeners[number] = l
	return func() {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		if s.b.bug != StoppedIsTold {
			delete(s.listeners, number)
		}
	}
}

// wake tells the process that its waiter should ask again.
func (s *Store) wake(t dibs.Token) { s.tell(t, dibs.Answer{}) }

// tell tells the process what its waiter was granted, or that it should ask.
func (s *Store) tell(t dibs.Token, a dibs.Answer) {
	for _, l := range s.listeners {
		l.wake(t, a)
	}
}

// hearsGrants reports whether the process can be told a grant.
func (s *Store) hearsGrants() bool {
	for _, l := range s.listeners {
		if l.takes {
			return true
		}
	}
	return false
}

// tells reports whether the next in the queue is told its grant as it is made. Who
// has to hear of what was abandoned before is not, nor who does something else than
// another holder, nor what must not be left unknown because nobody heard.
func (s *state) tells(next *place) bool {
	switch {
	case !next.store.hearsGrants():
		return false
	case next.claim.AtMostOnce:
		return s.b.bug == AtMostOnceTold
	case s.gone != nil:
		return s.b.bug == HeirTold
	case slices.ContainsFunc(s.holders, func(l lease) bool { return l.asked.Differs(next.claim.Fingerprint) }):
		return s.b.bug == ClashTold
	}
	return true
}

// tell makes the grant one that lasts a Turn from now on, and passes it on.
func (s *state) tell(l *lease, next *place, now time.Time) {
	l.ends = s.until(now.Add(s.b.turn))
	a := granted(l)
	switch s.b.bug {
	case ToldForEver:
		l.ends = s.until(now.Add(next.claim.TTL))
	case ToldBriefly:
		l.ends = s.until(now.Add(s.b.turn / 2))
	case HeirTold:
		a.Attempt, a.Progress = 1, nil
	}
	next.store.tell(next.claim.Token, a)
}
