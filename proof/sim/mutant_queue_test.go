package sim_test

import (
	"context"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

func barging(s dibs.Store) hooks {
	return asked(s, func(c *store.Claim) {
		if c.Mode == store.Queue {
			c.Mode, c.PlaceTTL = store.Try, 0
		}
	}, func(c store.Claim, a *store.Answer) {
		if c.Mode == store.Queue && a.State == store.Held {
			a.Queued = true
		}
	})
}

// stranded answers a waiter that asks again what it answered at first.
func stranded(s dibs.Store) hooks {
	var waiting memory[store.Token, store.Answer]
	return hooks{claim: func(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
		err := part(ctx, claims, answers, s.Claim, func(i int) bool {
			a, ok := waiting.get(claims[i].Token)
			if ok && claims[i].Mode == store.Queue {
				answers[i] = a
				return false
			}
			return true
		})
		if err != nil {
			return err
		}
		for i, a := range answers {
			if claims[i].Mode == store.Queue && a.State == store.Held && a.Queued {
				waiting.set(claims[i].Token, a)
			}
		}
		return nil
	}}
}

// placeLost gives a place up when a lease from it ends, and takes a second claim from
// it for one without a place.
func placeLost(s dibs.Store) hooks {
	var taken memory[store.Token, bool]       // places, once a lease has come from them
	var from memory[store.Token, store.Token] // the place, by the lease's token
	h := asked(s, func(c *store.Claim) {
		if _, ok := taken.get(c.From); ok {
			if place, own := from.get(c.Token); !own || place != c.From {
				c.From, c.Grace = store.Token{}, 0
			}
		}
	}, func(c store.Claim, a *store.Answer) {
		if !c.From.IsZero() && a.State == store.Granted {
			taken.set(c.From, true)
			from.set(c.Token, c.From)
		}
	})
	h.settle = func(ctx context.Context, settlements []store.Settlement, errs []error) error {
		if err := s.Settle(ctx, settlements, errs); err != nil {
			return err
		}
		for _, x := range settlements {
			if place, ok := from.get(x.Token); ok {
				settleOne(ctx, s, store.Settlement{Key: x.Key, Token: place, Outcome: store.Release})
			}
		}
		return nil
	}
	return h
}
