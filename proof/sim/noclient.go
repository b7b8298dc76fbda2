package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// noClient calls the store without a client: it asks again although it knows the answer, renews
// what is over, and settles twice and late. The store must stand that.
func (w *worker) noClient(ctx context.Context, k key) {
	if w.world.healed() || w.chance(20) {
		w.lock(ctx, k)
		return
	}
	ttl := w.world.plan.ttl / 2
	c := store.Claim{
		Key: dibs.Key{Name: k.name}, Token: store.NewToken(), TTL: ttl, PlaceTTL: ttl, Permits: 1, Weight: 1,
		Mode: []store.Mode{store.Try, store.Queue, store.Queue}[w.IntN(3)],
	}
	if w.chance(60) {
		c.MaxAge = dibs.AnyAge
		c.Fingerprint = sha256.Sum256([]byte([]string{"this", "this", "that"}[w.IntN(3)]))
	}
	granted := false
	for range 2 + w.IntN(8) {
		pause := w.upTo(w.world.plan.ttl)
		if c.Mode == store.Queue && !granted {
			pause = min(pause, ttl/4)
		}
		if !w.rest(ctx, pause) || w.world.healed() {
			break
		}
		switch n := w.IntN(10); {
		case n < 4 || !granted && n < 8:
			a, ok := w.claim(ctx, c)
			if !ok {
				continue
			}
			switch a.State {
			case store.Granted:
				granted = true
			case store.Held:
				granted = false // it has run out, and the token waits anew
			default:
				return
			}
		case n < 7:
			w.renew(ctx, store.Renewal{Key: c.Key, Token: c.Token, TTL: ttl})
		default:
			x := store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Outcome(w.IntN(4))}
			if !granted && w.world.plan.pushes {
				x.Outcome = store.Release // it may have missed a pushed grant
			}
			if x.Outcome == store.Keep {
				x.Data = fmt.Appendf(nil, "record %d", w.world.next())
				x.Retention = k.retention
			}
			for range 1 + w.IntN(2) {
				w.end(ctx, x)
				if !w.rest(ctx, w.upTo(ttl)) {
					return
				}
			}
			return
		}
	}
	if w.chance(70) || w.world.healed() {
		w.end(context.WithoutCancel(ctx), store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Release})
	}
}

// call makes one call of the store, with a time limit.
func call[Q, A any](ctx context.Context, w *worker, q Q, do func(context.Context, []Q, []A) error) (a A, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, w.world.plan.timeout)
	defer cancel()
	answers := make([]A, 1)
	err := do(ctx, slices.Clone([]Q{q}), answers)
	return answers[0], w.gate() && err == nil
}

func (w *worker) claim(ctx context.Context, c store.Claim) (store.Answer, bool) {
	return call(ctx, w, c, w.session.store.Claim)
}

func (w *worker) renew(ctx context.Context, r store.Renewal) {
	_, _ = call(ctx, w, r, w.session.store.Renew)
}

func (w *worker) end(ctx context.Context, x store.Settlement) {
	_, _ = call(ctx, w, x, w.session.store.Settle)
}
