package dibs_test

import (
	"context"
	"maps"
	"sync"
	"testing"

	"github.com/dibs-go/dibs"
)

// teller is a faulty store whose wake-ups are grants: it claims the key for a waiter that
// the store within wakes, for one PushedTTL, and tells it. What must not be told is
// a mere wake-up. A test can hold the words back.
type teller struct {
	*faulty

	telling sync.Mutex
	waiting map[dibs.Token]dibs.Claim
	highest map[dibs.Key]uint64 // fence
	wake    func(dibs.Token, dibs.Answer)
	holding bool
	held    []func() // words, held back
	told    []dibs.Answer
	hang    bool // renewals end with their context
}

func newTeller(t *testing.T) *teller {
	t.Helper()
	return &teller{
		faulty:  newFaulty(newStore(t)),
		waiting: map[dibs.Token]dibs.Claim{},
		highest: map[dibs.Key]uint64{},
	}
}

// Notify implements dibs.Notifier.
func (s *teller) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	s.wake = wake
	// The store within calls under its locks.
	return s.faulty.Notify(func(token dibs.Token, _ dibs.Answer) { go s.turn(token) })
}

// turn tells a waiter what it was granted, or that it should ask.
func (s *teller) turn(token dibs.Token) {
	s.telling.Lock()
	defer s.telling.Unlock()
	var word dibs.Answer
	c, ok := s.waiting[token]
	if ok && c.Mode == dibs.Queue && !c.AtMostOnce {
		c.TTL = dibs.PushedTTL
		answers := make([]dibs.Answer, 1)
		if err := s.Store.Claim(context.Background(), []dibs.Claim{c}, answers); err != nil {
			panic(err)
		}
		if a := answers[0]; a.State == dibs.Granted {
			s.highest[c.Key] = max(s.highest[c.Key], a.Fence)
			if a.Attempt == 1 && a.Progress == nil {
				word = a
				s.told = append(s.told, a)
			}
		}
	}
	if s.holding {
		s.held = append(s.held, func() { s.wake(token, word) })
		return
	}
	s.wake(token, word)
}

// Claim implements dibs.Store.
func (s *teller) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	s.mu.Lock()
	s.claims = append(s.claims, append([]dibs.Claim(nil), claims...))
	s.mu.Unlock()
	return s.around("claim", func() error { return s.claim(ctx, claims, answers) })
}

// claim is a Claim that nothing happens to and that is not counted.
func (s *teller) claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	s.telling.Lock()
	defer s.telling.Unlock()
	if err := s.Store.Claim(ctx, claims, answers); err != nil {
		return err
	}
	for i, c := range claims {
		switch a := &answers[i]; a.State {
		case dibs.Granted:
			s.highest[c.Key] = max(s.highest[c.Key], a.Fence)
		case dibs.Held:
			a.Fence = s.highest[c.Key]
			s.waiting[c.Token] = c
		}
	}
	return nil
}

// Settle implements dibs.Store.
func (s *teller) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	s.mu.Lock()
	s.settls = append(s.settls, append([]dibs.Settlement(nil), settlements...))
	s.mu.Unlock()
	return s.around("settle", func() error {
		s.telling.Lock()
		defer s.telling.Unlock()
		for _, x := range settlements {
			delete(s.waiting, x.Token)
		}
		return s.Store.Settle(ctx, settlements, errs)
	})
}

// Renew implements dibs.Store.
func (s *teller) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	s.telling.Lock()
	hang := s.hang
	s.hang = false
	s.telling.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.faulty.Renew(ctx, renewals, errs)
}

// holdBack holds back what is told from now on.
func (s *teller) holdBack() {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.holding = true
}

// tellLate tells what was held back, and holds nothing back from now on.
func (s *teller) tellLate() {
	s.telling.Lock()
	defer s.telling.Unlock()
	for _, tell := range s.held {
		tell()
	}
	s.held, s.holding = nil, false
}

// hold makes somebody else the holder, and returns what ends that. Nothing that
// happens to calls happens to this.
func (s *teller) hold(t *testing.T, key string) (fence uint64, release func()) {
	t.Helper()
	return s.holdOne(t, key, 1)
}

// holdOne is hold for one of so many permits.
func (s *teller) holdOne(t *testing.T, key string, permits int) (fence uint64, release func()) {
	t.Helper()
	c := dibs.Claim{Key: dibs.Key{Name: key}, Token: dibs.NewToken(), TTL: dibs.AnyAge, Permits: permits, Weight: 1}
	answers := make([]dibs.Answer, 1)
	if err := s.claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].State != dibs.Granted {
		t.Fatalf("%+v, %v", answers[0], err)
	}
	return answers[0].Fence, func() {
		t.Helper()
		errs := make([]error, 1)
		if err := s.Store.Settle(t.Context(), []dibs.Settlement{{Key: c.Key, Token: c.Token}}, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
	}
}

// elements returns how many claims, renewals and settlements were asked for.
func (s *teller) elements() (claims, renews, settles int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.claims {
		claims += len(b)
	}
	for _, b := range s.renews {
		renews += len(b)
	}
	for _, b := range s.settls {
		settles += len(b)
	}
	return claims, renews, settles
}

// fences returns the fences that were told.
func (s *teller) fences() map[uint64]bool {
	s.telling.Lock()
	defer s.telling.Unlock()
	all := map[uint64]bool{}
	for _, a := range s.told {
		all[a.Fence] = true
	}
	return maps.Clone(all)
}
