package sim_test

import (
	"context"
	"errors"
	"slices"

	"github.com/dibs-go/dibs"
)

func noUndo(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
		return part(ctx, settlements, errs, s.Settle, func(i int) bool { return settlements[i].Outcome != dibs.Undo })
	}}
}

func noTrust(s dibs.Store) hooks {
	return hooks{renew: func(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
		_ = s.Renew(ctx, renewals, make([]error, len(renewals)))
		clear(errs)
		return nil
	}}
}

func renewalRevives(s dibs.Store) hooks {
	var claims memory[dibs.Token, dibs.Claim]
	h := asked(s, nil, func(c dibs.Claim, a *dibs.Answer) {
		if a.State == dibs.Granted && c.Mode != dibs.Look {
			c.Mode, c.From, c.Hold, c.Stay = dibs.Try, dibs.Token{}, 0, 0
			claims.set(c.Token, c)
		}
	})
	h.renew = func(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
		if err := s.Renew(ctx, renewals, errs); err != nil {
			return err
		}
		for i, r := range renewals {
			c, ok := claims.get(r.Token)
			if !ok || !errors.Is(errs[i], dibs.ErrLost) {
				continue
			}
			c.TTL = r.TTL
			if claimOne(ctx, s, c).State == dibs.Granted {
				errs[i] = nil
			}
		}
		return nil
	}
	h.settle = func(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
		for _, x := range settlements {
			claims.drop(x.Token) // it is the end that is undone, not a settlement
		}
		return s.Settle(ctx, settlements, errs)
	}
	return h
}

func settleAnyToken(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
		if err := s.Settle(ctx, settlements, errs); err != nil {
			return err
		}
		i, ok := s.(dibs.Inspector)
		for n, x := range settlements {
			if !ok || x.Outcome == dibs.Keep || !errors.Is(errs[n], dibs.ErrLost) {
				continue
			}
			if ended, err := i.ForceRelease(ctx, x.Key, ""); err == nil && ended > 0 {
				errs[n] = nil
			}
		}
		return nil
	}}
}

func leaseShort(s dibs.Store) hooks {
	h := asked(s, func(c *dibs.Claim) {
		c.TTL = max(c.TTL/2, min(c.TTL, dibs.MinDuration))
	}, nil)
	h.renew = func(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
		short := make([]dibs.Renewal, len(renewals))
		for i, r := range renewals {
			r.TTL = max(r.TTL/2, min(r.TTL, dibs.MinDuration))
			short[i] = r
		}
		return s.Renew(ctx, short, errs)
	}
	return h
}

func claimAnew(s dibs.Store) hooks {
	var granted memory[dibs.Token, bool]
	return hooks{claim: func(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
		for _, c := range claims {
			if _, ok := granted.get(c.Token); ok && (c.Mode == dibs.Try || c.Mode == dibs.Queue) {
				settleOne(ctx, s, dibs.Settlement{Key: c.Key, Token: c.Token, Outcome: dibs.Release})
			}
		}
		if err := s.Claim(ctx, claims, answers); err != nil {
			return err
		}
		for i, a := range answers {
			if a.State == dibs.Granted {
				granted.set(claims[i].Token, true)
			}
		}
		return nil
	}}
}

func permitTooMany(s dibs.Store) hooks {
	return asked(s, func(c *dibs.Claim) {
		if !c.AtMostOnce && c.Permits < dibs.MaxPermits {
			c.Permits++
		}
	}, nil)
}

func permitsStay(s dibs.Store) hooks {
	var first memory[dibs.Key, int]
	return asked(s, func(c *dibs.Claim) {
		permits, ok := first.get(c.Key)
		if !ok {
			permits = c.Permits
			first.set(c.Key, permits)
		}
		c.Permits, c.Weight = permits, min(c.Weight, permits)
	}, nil)
}

func undoCounts(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
		other := slices.Clone(settlements)
		for i := range other {
			if x := &other[i]; x.Outcome == dibs.Undo {
				x.Outcome = dibs.Abandon
			}
		}
		return s.Settle(ctx, other, errs)
	}}
}

func weightIgnored(s dibs.Store) hooks {
	return asked(s, func(c *dibs.Claim) { c.Weight = min(c.Weight, 1) }, nil)
}

func fenceRepeats(s dibs.Store) hooks {
	const tick = 1<<20 - 1 // a second, of a clock in µs
	return fences(s, func(fence uint64) uint64 { return fence &^ tick })
}

func fenceFalls(s dibs.Store) hooks {
	return fences(s, func(fence uint64) uint64 { return 1<<63 - fence })
}

// fences returns hooks that change the fences.
func fences(s dibs.Store, change func(uint64) uint64) hooks {
	h := asked(s, nil, func(_ dibs.Claim, a *dibs.Answer) {
		if a.Fence != 0 {
			a.Fence = change(a.Fence)
		}
	})
	h.pushed = func(a dibs.Answer) dibs.Answer {
		a.Fence = change(a.Fence)
		return a
	}
	return h
}
