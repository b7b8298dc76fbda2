package dibs_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestPushedGrantNeedsNoClaim: a contended cycle takes two calls, one to join and
// one to release, and the observer sees it.
func TestPushedGrantNeedsNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 30
		s := newPusher(t)
		var mu sync.Mutex
		events := map[dibs.EventKind][]dibs.Event{}
		c := newClient(t, s, &dibs.Options{Observe: func(_ context.Context, e dibs.Event) {
			mu.Lock()
			defer mu.Unlock()
			events[e.Kind] = append(events[e.Kind], e)
		}})
		_, end := s.hold(t, "k")
		var all sync.WaitGroup
		var order []int
		inside, last := 0, uint64(0)
		for i := range n {
			all.Go(func() {
				lease, err := c.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				if inside++; inside != 1 || lease.Fence() <= last || lease.Attempt() != 1 || lease.Progress() != nil {
					t.Errorf("%d at once, fence %d after %d, attempt %d", inside, lease.Fence(), last, lease.Attempt())
				}
				last = lease.Fence()
				time.Sleep(5 * time.Millisecond)
				inside--
				release(t, lease)
			})
			synctest.Wait()
		}
		start := time.Now()
		end()
		all.Wait()
		if d := time.Since(start); d != n*5*time.Millisecond {
			t.Errorf("%d turns of 5 ms took %v", n, d)
		}
		for i, waiter := range order {
			if i != waiter {
				t.Fatalf("they came in the order %v", order)
			}
		}
		if claims, renews, settles := s.elements(); claims != n || renews != 0 || settles != n {
			t.Errorf("%d turns took %d claims, %d renewals and %d settlements", n, claims, renews, settles)
		}
		fences := s.fences()
		for kind, held := range map[dibs.EventKind]time.Duration{dibs.EventAcquired: 0, dibs.EventReleased: 5 * time.Millisecond} {
			if len(events[kind]) != n {
				t.Errorf("%d events that it was %s", len(events[kind]), kind)
			}
			for i, e := range events[kind] {
				turn := time.Duration(i) * 5 * time.Millisecond
				if e.Waited != turn || e.Held != held || !fences[e.Fence] || e.Attempt != 1 || e.ID() == "" {
					t.Errorf("event %d: %+v, want %s after %v for %v", i, e, kind, turn, held)
				}
			}
		}
		if len(events) != 2 {
			t.Errorf("events of %d kinds", len(events))
		}
		empty(t, s)
	})
}

// TestGrantPushedBeforeTheAnswer: a waiter that gets its grant before it
// knows that it waits begins at once.
func TestGrantPushedBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPusher(t)
		c := newClient(t, s, nil)
		_, end := s.hold(t, "k")
		s.set(nil, func(string) error { time.Sleep(50 * time.Millisecond); return nil })
		waiter := await(t, c, nil)
		s.set(nil, nil)
		end()
		waiter.begins(t, s, 50*time.Millisecond, 1)
	})
}

// TestLateGrantIsNotUsed: a grant that reaches the waiter (or that it comes to
// look at) when little of its time is left, or none, makes it ask.
func TestLateGrantIsNotUsed(t *testing.T) {
	const made = 100 * time.Millisecond // after the waiter was answered
	for late, want := range map[time.Duration]struct {
		asks    int
		attempt int
	}{
		0:                          {0, 1},
		600 * time.Millisecond:     {0, 1},
		740 * time.Millisecond:     {1, 1}, // its claim gets the same grant
		made + store.PushedTTL - 1: {1, 1},
		made + store.PushedTTL:     {1, 2}, // the grant has run out
		3250 * time.Millisecond:    {1, 2}, // not when it asks by itself
	} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, end, waiter := holdAndWait(t, nil, nil)
				answered := time.Now()
				s.set(func(string) error { return errCut }, nil) // it cannot ask by itself
				s.delayPushes()
				time.Sleep(made)
				end()
				synctest.Wait()
				time.Sleep(max(0, late-made))
				s.set(nil, nil)
				claims, _, _ := s.elements()
				s.pushDelayed()
				lease := waiter.got(t)
				after, _, _ := s.elements()
				if after-claims != want.asks || lease.Attempt() != want.attempt {
					t.Errorf("%d claims, attempt %d; want %d and %d", after-claims, lease.Attempt(), want.asks, want.attempt)
				}
				if trusted := lease.Until().Sub(answered); want.asks == 0 && trusted != 979*time.Millisecond {
					t.Errorf("trusted until %v after the last answer", trusted)
				}
				if want.attempt == 1 && !s.fences()[lease.Fence()] {
					t.Error("it is another grant")
				}
				release(t, lease)
				empty(t, s)
			})
		})
	}
}

// TestOldGrantIsNotUsed: a grant that was long on its way reaches a waiter
// that has lost it and waits anew. Another caller holds the key, perhaps with another
// number of permits.
func TestOldGrantIsNotUsed(t *testing.T) {
	for _, permits := range []int{1, 2} {
		t.Run(fmt.Sprint(permits, " permits"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, end, waiter := holdAndWait(t, nil, nil)
				s.set(func(string) error { return errCut }, nil)
				s.delayPushes()
				end()
				time.Sleep(store.PushedTTL + 10*time.Millisecond) // the pushed grant has run out
				other, end := s.holdOne(t, "k", permits)
				s.set(nil, nil)
				time.Sleep(store.PushedTTL * 3 / 4)
				claims, _, _ := s.elements()
				s.pushDelayed()
				synctest.Wait()
				if waiter.over() {
					t.Fatalf("the waiter took an old grant: %v", waiter.err)
				}
				if after, _, _ := s.elements(); after != claims+1 {
					t.Errorf("it asked %d times", after-claims)
				}
				end()
				lease := waiter.got(t)
				if lease.Fence() <= other || lease.Attempt() != 1 {
					t.Errorf("fence %d after %d, attempt %d", lease.Fence(), other, lease.Attempt())
				}
				release(t, lease)
				empty(t, s)
			})
		})
	}
}

// TestPushedWhileItAsks: a grant pushed then is not used before the answer,
// as the question might reach the store after the lease's end, and get another.
func TestPushedWhileItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, end, waiter := holdAndWait(t, nil, nil)
		s.set(nil, func(string) error { time.Sleep(100 * time.Millisecond); return nil })
		time.Sleep(store.PushedTTL/2 + 40*time.Millisecond) // the store has done what it asked for
		s.set(nil, nil)
		end()
		if waiter.over() {
			t.Fatal("it has not waited for the answer")
		}
		waiter.begins(t, s, 60*time.Millisecond, 2)
	})
}

// TestWokenWhileItsQuestionWaits: the answer to a question does not make up for a wake-up
// that came before it.
func TestWokenWhileItsQuestionWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, end, waiter := holdAndWait(t, nil, nil)
		time.Sleep(store.PushedTTL/2 - time.Millisecond)
		others := keepBusy(t, s, c, 20*time.Millisecond)
		time.Sleep(5 * time.Millisecond)
		s.wake(s.first(), store.Answer{})
		<-others
		synctest.Wait()
		if claims, _, _ := s.elements(); claims != 4 {
			t.Errorf("%d claims, want the other one and three of the waiter", claims)
		}
		end()
		release(t, waiter.got(t))
		empty(t, s)
	})
}

// keepBusy keeps the store busy with another key for d. What it returns is closed then.
func keepBusy(t *testing.T, s *pusher, c *dibs.Client, d time.Duration) <-chan struct{} {
	t.Helper()
	s.set(func(string) error { time.Sleep(d); return nil }, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		testkit.Check(t, c.TryDo(t.Context(), "another", func(context.Context) error { return nil }))
	}()
	synctest.Wait()
	s.set(nil, nil)
	return done
}

// first returns the token that was claimed with first.
func (s *pusher) first() store.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[0][0].Token
}

// TestOldGrantOfTheHighestFence: a grant that was long on its way is old even if no other
// caller has been granted the key since, so that its fence is still the highest.
func TestOldGrantOfTheHighestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, end, waiter := holdAndWait(t, nil, nil)
		s.set(func(string) error { return errCut }, nil)
		s.delayPushes()
		end()
		time.Sleep(store.PushedTTL + 10*time.Millisecond) // the pushed grant has run out
		place := store.Claim{Key: dibs.Key{Name: "k"}, Token: store.NewToken(), Mode: store.Reserve, PlaceTTL: time.Minute}
		answers := make([]store.Answer, 1)
		if err := s.claim(t.Context(), []store.Claim{place}, answers); err != nil || !answers[0].Queued {
			t.Fatalf("%+v, %v", answers[0], err)
		}
		s.set(nil, nil)
		time.Sleep(store.PushedTTL) // the waiter has asked, and waits behind the place
		s.pushDelayed()
		if waiter.over() {
			t.Fatalf("the waiter took an old grant: %v", waiter.err)
		}
		errs := make([]error, 1)
		if err := s.Store.Settle(t.Context(), []store.Settlement{{Key: place.Key, Token: place.Token}}, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
		lease := waiter.got(t)
		if lease.Fence() <= answers[0].Fence {
			t.Errorf("the fence %d is not above that of the old grant, %d", lease.Fence(), answers[0].Fence)
		}
		release(t, lease)
		empty(t, s)
	})
}

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
