package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/store"
)

var cancelProperties = []Property{
	property("CancelledCallReturns",
		"A slow or dead backend must not hold a caller that gives up. The call may have happened, and its token settles it.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			returns := func(what string, call func()) {
				t.Helper()
				start := time.Now()
				if call(); time.Since(start) > limit {
					t.Errorf("%s with a cancelled context took %v", what, time.Since(start))
				}
			}
			// Whether the calls fail or not is up to the store.
			returns("Claim", func() { _ = p.store.Claim(ctx, []store.Claim{lock(k, a)}, make([]store.Answer, 1)) })
			t.undone(p, k, a)
			t.granted("the claim", p.try(k, a), 1)
			returns("Renew", func() {
				_ = p.store.Renew(ctx, []store.Renewal{{Key: k, Token: a, TTL: long}}, make([]error, 1))
			})
			t.ok("renew", p.renew(k, a, long))
			returns("Settle", func() { _ = p.store.Settle(ctx, []store.Settlement{{Key: k, Token: a}}, make([]error, 1)) })
			t.undone(p, k, a)
		}),
	property("CancelledInFlight",
		"A claim whose context ends under way may or may not have the key or a place. To settle its token leaves nothing behind in either case.", func(t *Trial) {
			p, q := t.process(), t.process()
			for i := range 40 {
				k, holder, a := key("k"+itoa(i)), store.NewToken(), store.NewToken()
				queued := i%2 == 1
				c := lock(k, a)
				if queued {
					t.granted("the holder", q.try(k, holder), 1)
					c.Mode = store.Queue
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(2000))*time.Microsecond)
				answers := make([]store.Answer, 1)
				err := p.store.Claim(ctx, []store.Claim{c}, answers)
				cancel()
				switch {
				case err != nil:
				case errors.Is(answers[0].Err, store.ErrBusy): // in a time as short as that
				case queued:
					t.waits("a claim that was in time", answers[0], 0)
				default:
					t.granted("a claim that was in time", answers[0], 1)
				}
				if queued {
					t.settled(p, k, a)
					t.ok("release", q.release(k, holder))
				}
				t.undone(p, k, a)
			}
		}).heavy(),
}

// settled settles a token that may or may not have a lease or a place.
func (t *Trial) settled(p *process, k store.Key, a store.Token) {
	t.Helper()
	if err := p.release(k, a); err != nil && !isLost(err) {
		t.Fatalf("settling an unknown outcome: %v, want nil or ErrLost", err)
	}
}

// undone settles an unknown outcome until the key is free. It does so again and again, as a
// client without an answer does, because the call whose context ended may arrive after the
// first settlement.
func (t *Trial) undone(p *process, k store.Key, a store.Token) {
	t.Helper()
	t.poll("a free key after an unknown outcome was settled", func() bool {
		t.settled(p, k, a)
		return p.look(k).State == store.Free
	})
}
