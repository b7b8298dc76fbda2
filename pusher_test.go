package dibs_test

import (
	"context"
	"maps"
	"sync"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// pusher is a faulty store that pushes grants: when the inner store wakes a waiter, it claims
// the key for that waiter, for PushedTTL, and pushes the grant. A grant that must not be
// pushed is a wake-up to ask. A test can delay the pushes.
type pusher struct {
	*faulty

	pushing  sync.Mutex
	waiting  map[store.Token]store.Claim
	highest  map[dibs.Key]uint64 // fence
	wake     func(store.Token, store.Answer)
	delaying bool
	delayed  []func()
	pushed   []store.Answer
	hang     bool // renewals end with their context
}

func newPusher(t *testing.T) *pusher {
	t.Helper()
	return &pusher{
		faulty:  newFaulty(newStore(t)),
		waiting: map[store.Token]store.Claim{},
		highest: map[dibs.Key]uint64{},
	}
}

// Notify implements store.Notifier.
func (s *pusher) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	s.wake = wake
	// On a goroutine, because the inner store calls under its locks.
	return s.faulty.Notify(func(token store.Token, _ store.Answer) { go s.push(token) })
}

// push pushes a waiter its grant, or wakes it to ask.
func (s *pusher) push(token store.Token) {
	s.pushing.Lock()
	defer s.pushing.Unlock()
	var answer store.Answer
	c, ok := s.waiting[token]
	if ok && c.Mode == store.Queue && !c.AtMostOnce {
		c.TTL = store.PushedTTL
		answers := make([]store.Answer, 1)
		if err := s.Store.Claim(context.Background(), []store.Claim{c}, answers); err != nil {
			panic(err)
		}
		if a := answers[0]; a.State == store.Granted {
			s.highest[c.Key] = max(s.highest[c.Key], a.Fence)
			if a.Attempt == 1 && a.Progress == nil {
				answer = a
				s.pushed = append(s.pushed, a)
			}
		}
	}
	if s.delaying {
		s.delayed = append(s.delayed, func() { s.wake(token, answer) })
		return
	}
	s.wake(token, answer)
}

// Claim implements dibs.Store.
func (s *pusher) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	s.mu.Lock()
	s.claims = append(s.claims, append([]store.Claim(nil), claims...))
	s.mu.Unlock()
	return s.around("claim", func() error { return s.claim(ctx, claims, answers) })
}

// claim is a Claim that nothing happens to and that is not counted.
func (s *pusher) claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	s.pushing.Lock()
	defer s.pushing.Unlock()
	if err := s.Store.Claim(ctx, claims, answers); err != nil {
		return err
	}
	for i, c := range claims {
		switch a := &answers[i]; a.State {
		case store.Granted:
			s.highest[c.Key] = max(s.highest[c.Key], a.Fence)
		case store.Held:
			a.Fence = s.highest[c.Key]
			s.waiting[c.Token] = c
		}
	}
	return nil
}

// Settle implements dibs.Store.
func (s *pusher) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	s.mu.Lock()
	s.settls = append(s.settls, append([]store.Settlement(nil), settlements...))
	s.mu.Unlock()
	return s.around("settle", func() error {
		s.pushing.Lock()
		defer s.pushing.Unlock()
		for _, x := range settlements {
			delete(s.waiting, x.Token)
		}
		return s.Store.Settle(ctx, settlements, errs)
	})
}

// Renew implements dibs.Store.
func (s *pusher) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	s.pushing.Lock()
	hang := s.hang
	s.hang = false
	s.pushing.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.faulty.Renew(ctx, renewals, errs)
}

// delayPushes delays what is pushed from now on.
func (s *pusher) delayPushes() {
	s.pushing.Lock()
	defer s.pushing.Unlock()
	s.delaying = true
}

// pushDelayed pushes what was delayed, and delays nothing from now on.
func (s *pusher) pushDelayed() {
	s.pushing.Lock()
	defer s.pushing.Unlock()
	for _, push := range s.delayed {
		push()
	}
	s.delayed, s.delaying = nil, false
}

// hold makes another client the holder and returns a function that ends that. Faults do not
// apply to it.
func (s *pusher) hold(t *testing.T, key string) (fence uint64, release func()) {
	t.Helper()
	return s.holdOne(t, key, 1)
}

// holdOne is hold for one of several permits.
func (s *pusher) holdOne(t *testing.T, key string, permits int) (fence uint64, release func()) {
	t.Helper()
	c := store.Claim{Key: dibs.Key{Name: key}, Token: store.NewToken(), TTL: dibs.AnyAge, Permits: permits, Weight: 1}
	answers := make([]store.Answer, 1)
	if err := s.claim(t.Context(), []store.Claim{c}, answers); err != nil || answers[0].State != store.Granted {
		t.Fatalf("%+v, %v", answers[0], err)
	}
	return answers[0].Fence, func() {
		t.Helper()
		errs := make([]error, 1)
		if err := s.Store.Settle(t.Context(), []store.Settlement{{Key: c.Key, Token: c.Token}}, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
	}
}

// holdAndWait returns a store whose key is held, and a client that waits for it. end ends the hold.
func holdAndWait(t *testing.T, o *dibs.Options, wanted *dibs.AcquireOptions) (s *pusher, c *dibs.Client, end func(), waiter *acquiring) {
	t.Helper()
	s = newPusher(t)
	c = newClient(t, s, o)
	_, end = s.hold(t, "k")
	return s, c, end, await(t, c, wanted)
}

// elements returns how many claims, renewals and settlements were asked for.
func (s *pusher) elements() (claims, renews, settles int) {
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

// fences returns the fences that were pushed.
func (s *pusher) fences() map[uint64]bool {
	s.pushing.Lock()
	defer s.pushing.Unlock()
	all := map[uint64]bool{}
	for _, a := range s.pushed {
		all[a.Fence] = true
	}
	return maps.Clone(all)
}
