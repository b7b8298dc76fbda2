package sim_test

import (
	"context"

	"github.com/dibs-go/dibs"
)

func barging(s dibs.Store) hooks {
	return asked(s, func(c *dibs.Claim) {
		if c.Mode == dibs.Queue {
			c.Mode, c.Stay = dibs.Try, 0
		}
	}, func(c dibs.Claim, a *dibs.Answer) {
		if c.Mode == dibs.Queue && a.State == dibs.Held {
			a.Queued = true
		}
	})
}

// stranded answers a waiter that asks again what it answered at first.
func stranded(s dibs.Store) hooks {
	var waiting memory[dibs.Token, dibs.Answer]
	return hooks{claim: func(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
		err := part(ctx, claims, answers, s.Claim, func(i int) bool {
			a, ok := waiting.get(claims[i].Token)
			if ok && claims[i].Mode == dibs.Queue {
				answers[i] = a
				return false
			}
			return true
		})
		if err != nil {
			return err
		}
		for i, a := range answers {
			if claims[i].Mode == dibs.Queue && a.State == dibs.Held && a.Queued {
				waiting.set(claims[i].Token, a)
			}
		}
		return nil
	}}
}

// placeLost gives a place up when a lease from it ends, and takes a second claim from
// it for one without a place.
func placeLost(s dibs.Store) hooks {
	var taken memory[dibs.Token, bool]      // places, once a lease has come from them
	var from memory[dibs.Token, dibs.Token] // the place, by the lease's token
	h := asked(s, func(c *dibs.Claim) {
		if _, ok := taken.get(c.From); ok {
			if place, own := from.get(c.Token); !own || place != c.From {
				c.From, c.Hold = dibs.Token{}, 0
			}
		}
	}, func(c dibs.Claim, a *dibs.Answer) {
		if !c.From.IsZero() && a.State == dibs.Granted {
			taken.set(c.From, true)
			from.set(c.Token, c.From)
		}
	})
	h.settle = func(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
		if err := s.Settle(ctx, settlements, errs); err != nil {
			return err
		}
		for _, x := range settlements {
			if place, ok := from.get(x.Token); ok {
				settleOne(ctx, s, dibs.Settlement{Key: x.Key, Token: place, Outcome: dibs.Release})
			}
		}
		return nil
	}
	return h
}
