package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/store"
)

const (
	// minPoll is how long a claim that waits is not asked for again, if the store wakes it.
	minPoll = 50 * time.Millisecond
	// minPlaceTTL is the least PlaceTTL of a claim that waits, because its place ends unless it is asked for
	// several times in each PlaceTTL.
	minPlaceTTL = backoff.Asks * backoff.Near
)

// await asks for the claims until one of them is not held, or the wait is over. The places of
// all stand for their PlaceTTL after that, and for minPlaceTTL at least.
func (c *call) await(ctx context.Context, asked *leaseapi.ClaimCall, answers []store.Answer) *problem {
	n := int64(len(asked.Claims))
	if p := c.begin(ctx, n); p != nil {
		return p
	}
	defer c.end(n)
	for i := range asked.Claims {
		if claim := &asked.Claims[i]; claim.Mode == store.Queue {
			claim.PlaceTTL = max(claim.PlaceTTL, minPlaceTTL)
		}
	}
	w := c.waiters.enter(asked.Claims)
	defer c.waiters.leave(asked.Claims, w)
	q := &questions{claims: asked.Claims, answers: answers}
	return q.await(ctx, c.Server, w, asked.Wait)
}

// begin counts a call that waits for n claims. It is not one that the store works for.
func (c *call) begin(ctx context.Context, n int64) *problem {
	if !take(&c.load.waiters, n, c.config.MaxWaiters) {
		return problemOverloaded.with(fmt.Sprintf("With this call the server would have more waiting claims than %d, its --max-waiters.", c.config.MaxWaiters))
	}
	if most := c.each(c.config.MaxWaiters); !take(&c.by.load.waiters, n, most) {
		c.load.waiters.Add(-n)
		return problemOverloaded.with(fmt.Sprintf("With this call the credential would have more waiting claims than %d, half of the server's --max-waiters.", most))
	}
	c.load.calls.Add(-1)
	c.by.load.calls.Add(-1)
	exchangeOf(ctx).call.Waited = true
	if c.hooks.Waiting != nil {
		c.hooks.Waiting(n)
	}
	return nil
}

// end takes back what begin counted.
func (c *call) end(n int64) {
	if c.hooks.Waiting != nil {
		c.hooks.Waiting(-n)
	}
	c.by.load.calls.Add(1)
	c.load.calls.Add(1)
	c.by.load.waiters.Add(-n)
	c.load.waiters.Add(-n)
}

// questions are the claims of a call that waits, and when each is asked for again.
type questions struct {
	claims  []store.Claim
	answers []store.Answer // the last ones
	placed  []time.Time    // when its place was last asked for; zero: it has none yet
	end     time.Time      // of the wait
	due     []int          // what is asked for now
	at      []time.Time
	polls   []time.Duration
}

// begin makes all claims due.
func (q *questions) begin(wait time.Duration) {
	n := len(q.claims)
	q.end = time.Now().Add(wait)
	q.due, q.at, q.placed, q.polls = make([]int, n), make([]time.Time, n), make([]time.Time, n), make([]time.Duration, n)
	for i := range q.due {
		q.due[i] = i
	}
}

// await asks until the wait is over. Here thousands of goroutines wait at once. So this frame and
// those of its callers are small: Go halves a stack of which less than a quarter is used.
func (q *questions) await(ctx context.Context, s *Server, w *waiting, wait time.Duration) *problem {
	q.begin(wait)
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		over, p := q.ask(ctx, s)
		if over || p != nil {
			return p
		}
		again.Reset(q.pause())
		select {
		case <-w.signal:
		case <-again.C:
		case <-s.shell.Stopping():
			return nil // what the claims found last; the client asks another server
		case <-ctx.Done():
			return &problemStore // nobody reads it
		}
		if w.isSettled() || !time.Now().Before(q.end) {
			return nil
		}
		q.wake(w)
	}
}

// ask asks for the claims that are due, and reports whether the wait is over.
func (q *questions) ask(ctx context.Context, s *Server) (over bool, p *problem) {
	join, looks, at := q.looks()
	if len(looks) > 0 { // asked here and not in a function, because the stack would grow
		answers := make([]store.Answer, len(looks))
		if p := s.ask(ctx, looks, answers); p != nil {
			return false, p
		}
		if join, p = q.looked(ctx, s, join, at, answers); p != nil {
			return false, p
		}
	}
	some, got := q.claims, q.answers
	if len(join) < len(q.claims) {
		some, got = make([]store.Claim, len(join)), make([]store.Answer, len(join))
		for j, i := range join {
			some[j] = q.claims[i]
		}
	}
	if p := s.ask(ctx, some, got); p != nil {
		return false, p
	}
	now := time.Now()
	for j, i := range join {
		if len(join) < len(q.claims) {
			q.answers[i] = got[j]
		}
		if a := &q.answers[i]; a.Queued && q.claims[i].Mode == store.Queue {
			q.placed[i] = now
		}
	}
	for _, i := range q.due {
		a := &q.answers[i]
		lost := a.State == store.Held && !a.Queued && !q.placed[i].IsZero()   // the client joins again, if it still waits
		if lost || a.State != store.Held && !errors.Is(a.Err, dibs.ErrBusy) { // a store that is busy with a key is asked again
			over = true
		}
		var interval time.Duration
		interval, q.polls[i] = backoff.Next(s.notified, a.Ahead, a.Left, q.polls[i])
		if q.claims[i].Mode == store.Queue {
			interval = min(interval, q.claims[i].PlaceTTL/backoff.Asks)
		}
		if s.notified {
			interval = max(interval, minPoll)
		}
		q.at[i] = now.Add(interval)
	}
	return over, nil
}

// looks returns the due claims that are to be made, and looks at the other ones, which have a place.
// A place that is gone was given up, maybe at another server, and a claim would take it again for
// nobody.
func (q *questions) looks() (join []int, looks []store.Claim, at []int) {
	for _, i := range q.due {
		if q.placed[i].IsZero() {
			join = append(join, i)
			continue
		}
		looks, at = append(looks, q.claims[i]), append(at, i)
		c := &looks[len(looks)-1]
		c.Mode, c.From, c.Grace = store.Look, store.Token{}, 0 // without From it says whether the token has a place
	}
	return join, looks, at
}

// looked appends to join the claims that are to be made after the answers to looks. The answers are
// those of the other claims.
func (q *questions) looked(ctx context.Context, s *Server, join, at []int, answers []store.Answer) ([]int, *problem) {
	for j, i := range at {
		a, c := &answers[j], &q.claims[i]
		if a.State == store.Free && !a.Queued {
			if err := s.holds(ctx, c, a); err != nil {
				return nil, &problemStore
			}
		}
		if a.Err != nil || a.State == store.Held && (!a.Queued || time.Since(q.placed[i]) < c.PlaceTTL/(2*backoff.Asks)) {
			q.answers[i] = *a
		} else {
			join = append(join, i)
		}
	}
	return join, nil
}

// holds finds out whether a token without a place holds its key. If it does not, the answer is Held
// without a place.
func (s *Server) holds(ctx context.Context, c *store.Claim, a *store.Answer) error {
	err, _, failed := s.renewals.Do(ctx, nil, store.Renewal{Key: c.Key, Token: c.Token, TTL: c.TTL}, nil)
	switch {
	case errors.Is(err, store.ErrLost):
		*a = store.Answer{State: store.Held}
	case err != nil:
		*a = store.Answer{Err: err}
	}
	return failed
}

// pause returns how long it is until the first claim is due, or the wait ends.
func (q *questions) pause() time.Duration {
	return time.Until(earlier(slices.MinFunc(q.at, time.Time.Compare), q.end))
}

// wake makes the claims due that were woken, or whose time has come.
func (q *questions) wake(w *waiting) {
	q.due = w.due(q.due[:0])
	now := time.Now()
	for i, at := range q.at {
		if !at.After(now) && !slices.Contains(q.due, i) {
			q.due = append(q.due, i)
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
