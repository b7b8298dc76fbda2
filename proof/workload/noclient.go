package workload

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// noClient calls the store without a client: it asks again although it knows the answer, renews
// what is over, writes late, and settles twice and late. The store must stand that.
func (a *Actor) noClient(ctx context.Context, k Key) {
	if a.Calm() || a.Chance(20) {
		a.Lock(ctx, k)
		return
	}
	ttl := a.TTL / 2
	c := store.Claim{
		Key: a.Client.Key(k.Name), Token: store.NewToken(), TTL: ttl, PlaceTTL: ttl, Permits: 1, Weight: 1,
		Mode: []store.Mode{store.Try, store.Queue, store.Queue}[a.IntN(3)],
	}
	if a.Chance(60) {
		c.MaxAge, c.Fingerprint = dibs.AnyAge, a.print()
	}
	fence := uint64(0) // while it holds the key, as far as it knows
	for range 2 + a.IntN(8) {
		pause := a.UpTo(a.TTL)
		if c.Mode == store.Queue && fence == 0 {
			pause = min(pause, ttl/4)
		}
		if !a.Rest(ctx, pause) || a.Calm() {
			break
		}
		switch n := a.IntN(10); {
		case n < 4 || fence == 0 && n < 8:
			answer, ok := call(ctx, a, c, a.Store.Claim)
			if !ok {
				continue
			}
			switch answer.State {
			case store.Granted:
				fence = answer.Fence
				a.Write(k.Name, fence)
			case store.Held:
				fence = 0 // it has run out, and the token waits anew
			default:
				return
			}
		case n < 7:
			a.renew(ctx, c)
			if fence != 0 {
				a.Write(k.Name, fence) // perhaps too late
			}
		default:
			a.end(ctx, c, fence != 0, k.Retention)
			return
		}
	}
	a.Crash("before it settles")
	if a.Chance(70) || a.Calm() {
		_, _ = call(context.WithoutCancel(ctx), a, store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Release}, a.Store.Settle)
	}
}

// end settles a claim in any way, once or twice, and renews after that. Where grants are pushed, a token that
// knows of none may have missed one, which it only releases.
func (a *Actor) end(ctx context.Context, c store.Claim, granted bool, retention time.Duration) {
	x := store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Outcome(a.IntN(4))}
	if !granted && a.Pushes {
		x.Outcome = store.Release
	}
	if x.Outcome == store.Keep {
		x.Data, x.Retention = []byte("record "+a.Next()), retention
	}
	for range 1 + a.IntN(2) {
		_, _ = call(ctx, a, x, a.Store.Settle)
		if !a.Rest(ctx, a.UpTo(c.TTL)) {
			return
		}
	}
	if a.Chance(30) {
		a.renew(ctx, c)
	}
}

func (a *Actor) renew(ctx context.Context, c store.Claim) {
	if err, _ := call(ctx, a, store.Renewal{Key: c.Key, Token: c.Token, TTL: c.TTL}, a.Store.Renew); errors.Is(err, dibs.ErrLost) {
		a.Lost()
	}
}

// call makes one call of the store, with a time limit. It is not ok if no answer came.
func call[Q, A any](ctx context.Context, a *Actor, q Q, do func(context.Context, []Q, []A) error) (answer A, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	answers := make([]A, 1)
	err := do(ctx, slices.Clone([]Q{q}), answers)
	return answers[0], a.Gate() && err == nil
}
