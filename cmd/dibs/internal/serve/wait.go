package serve

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/internal/pace"
	"github.com/dibs-go/dibs/store"
)

// await asks for the claims until one of them is not held, or the wait is over. The places of
// all stand for their Stay after that.
func (c *call) await(ctx context.Context, asked leaseapi.ClaimCall, answers []store.Answer) *problem {
	claims, n := asked.Claims, int64(len(asked.Claims))
	if !take(&c.load.waiters, n, c.config.MaxWaiters) {
		return problemOverloaded.with("The server has as many waiting claims as --max-waiters.")
	}
	defer c.load.waiters.Add(-n)
	if !take(&c.by.load.waiters, n, c.config.MaxWaitersEach) {
		return problemOverloaded.with("The credential has as many waiting claims as --max-waiters-each.")
	}
	defer c.by.load.waiters.Add(-n)
	// A call that waits is not one that the store works for.
	c.load.calls.Add(-1)
	c.by.load.calls.Add(-1)
	defer c.load.calls.Add(1)
	defer c.by.load.calls.Add(1)

	exchangeOf(ctx).call.Waited = true
	if waiting := c.hooks.Waiting; waiting != nil {
		waiting(n)
		defer waiting(-n)
	}
	w := c.waiters.enter(claims)
	defer c.waiters.leave(claims, w)
	end := time.NewTimer(asked.Wait)
	defer end.Stop()
	due := make([]int, n)
	for i := range due {
		due[i] = i
	}
	next := make([]time.Time, n)
	polls := make([]time.Duration, n)
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		if p := c.askSome(ctx, claims, answers, due); p != nil {
			return p
		}
		if slices.ContainsFunc(answers, over) {
			return nil
		}
		now := time.Now()
		for _, i := range due {
			var interval time.Duration
			interval, polls[i] = pace.Next(c.notified, answers[i].Ahead, answers[i].Left, polls[i])
			if claims[i].Mode == store.Queue {
				interval = min(interval, claims[i].Stay/pace.Asks)
			}
			next[i] = now.Add(interval)
		}
		again.Reset(time.Until(slices.MinFunc(next, time.Time.Compare)))
		select {
		case <-w.signal:
		case <-again.C:
		case <-end.C:
			return nil
		case <-w.end:
			return nil
		case <-c.stopping:
			return nil // what the claims found last; the client asks another server
		case <-ctx.Done():
			return &problemStore // nobody reads it
		}
		due = w.due(due[:0])
		for i, at := range next {
			if !at.After(time.Now()) && !slices.Contains(due, i) {
				due = append(due, i)
			}
		}
	}
}

// askSome asks for the claims at these places.
func (s *Server) askSome(ctx context.Context, claims []store.Claim, answers []store.Answer, due []int) *problem {
	if len(due) == len(claims) {
		return s.ask(ctx, claims, answers)
	}
	some, got := make([]store.Claim, len(due)), make([]store.Answer, len(due))
	for j, i := range due {
		some[j] = claims[i]
	}
	p := s.ask(ctx, some, got)
	for j, i := range due {
		if p == nil {
			answers[i] = got[j]
		}
	}
	return p
}

// over reports whether an answer ends a wait. A store that is busy with a key is asked again.
func over(a store.Answer) bool {
	return a.State != store.Held && !errors.Is(a.Err, dibs.ErrBusy)
}

// waiters are the claims that wait, by token.
type waiters struct {
	// keep makes a pushed grant that nobody waits for last until its client asks. It renews the
	// lease, which does nothing if the client has settled it.
	keep func(store.Renewal)

	mu    sync.Mutex
	calls map[store.Token]*waiting
	gaps  map[store.Token]gap
	swept time.Time
}

// waiting is one call that waits.
type waiting struct {
	signal chan struct{} // has an element when some tokens were woken
	end    chan struct{} // closed when the client settles one of its tokens
	once   sync.Once     // of end
	left   chan struct{} // closed when the call asks no more

	mu    sync.Mutex
	at    map[store.Token]int
	woken []int
}

// gap is a claim in the queue whose client is between two calls.
type gap struct {
	key   dibs.Key
	ttl   time.Duration
	until time.Time
}

func newWaiters(keep func(store.Renewal)) *waiters {
	return &waiters{keep: keep, calls: map[store.Token]*waiting{}, gaps: map[store.Token]gap{}}
}

// enter begins to listen for the tokens of a call.
func (s *waiters) enter(claims []store.Claim) *waiting {
	w := &waiting{signal: make(chan struct{}, 1), end: make(chan struct{}), left: make(chan struct{}), at: make(map[store.Token]int, len(claims))}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range claims {
		if c.Token.IsZero() {
			continue // a look without a token; a settlement must not end it
		}
		w.at[c.Token] = i
		s.calls[c.Token] = w
		if c.Mode == store.Queue {
			delete(s.gaps, c.Token)
		}
	}
	return w
}

// leave ends that. A later call with the same token stays.
func (s *waiters) leave(claims []store.Claim, w *waiting) {
	defer close(w.left)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range claims {
		if s.calls[claims[i].Token] == w {
			delete(s.calls, claims[i].Token)
			s.remember(&claims[i])
		}
	}
	// A wake-up that came after the last question may have been a grant.
	for _, i := range w.due(nil) {
		if c := claims[i]; c.Mode == store.Queue {
			go s.keep(store.Renewal{Key: c.Key, Token: c.Token, TTL: max(c.Stay, c.TTL)})
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

// settled ends the wait for a token that its client settles: after settled no call asks for
// it, because that would take a place for nobody.
func (s *waiters) settled(t store.Token) {
	s.mu.Lock()
	w := s.calls[t]
	delete(s.gaps, t)
	s.mu.Unlock()
	if w == nil {
		return
	}
	w.once.Do(func() { close(w.end) })
	<-w.left
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
	s.gaps[c.Token] = gap{c.Key, c.TTL, now.Add(c.Stay)}
}

// wake is called by the store's Notifier. The call that waits asks again. If the wake-up is a
// grant and the client is between two calls, the grant is made to last as long as the place
// would have, because a pushed grant lasts a second only. It lasts for the claim's TTL at least:
// the client may ask before the renewal is done, here or at another server, and then counts on
// its TTL.
func (s *waiters) wake(t store.Token, a store.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock() // so that a call that leaves has all its wake-ups
	w, g := s.calls[t], s.gaps[t]
	switch left := time.Until(g.until); {
	case w != nil:
		w.wake(t)
	case a.State == store.Granted && left > 0:
		go s.keep(store.Renewal{Key: g.key, Token: t, TTL: max(left, g.ttl)})
	}
}

func (w *waiting) wake(t store.Token) {
	w.mu.Lock()
	w.woken = append(w.woken, w.at[t])
	w.mu.Unlock()
	select {
	case w.signal <- struct{}{}:
	default:
	}
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
