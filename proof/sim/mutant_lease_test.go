package sim_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

func noUndo(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []store.Settlement, errs []error) error {
		return part(ctx, settlements, errs, s.Settle, func(i int) bool { return settlements[i].Outcome != store.Undo })
	}}
}

func noTrust(s dibs.Store) hooks {
	return hooks{renew: func(ctx context.Context, renewals []store.Renewal, errs []error) error {
		_ = s.Renew(ctx, renewals, make([]error, len(renewals)))
		clear(errs)
		return nil
	}}
}

func trustUnsettled(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []store.Settlement, errs []error) error {
		if err := s.Settle(ctx, settlements, errs); err != nil {
			for i := range errs {
				errs[i] = dibs.ErrFull // which leaves the lease as it is
			}
		}
		return nil
	}}
}

func renewalRevives(s dibs.Store) hooks {
	var claims memory[store.Token, store.Claim]
	h := asked(s, nil, func(c store.Claim, a *store.Answer) {
		if a.State == store.Granted && c.Mode != store.Look {
			c.Mode, c.From, c.Grace, c.PlaceTTL = store.Try, store.Token{}, 0, 0
			claims.set(c.Token, c)
		}
	})
	h.renew = func(ctx context.Context, renewals []store.Renewal, errs []error) error {
		if err := s.Renew(ctx, renewals, errs); err != nil {
			return err
		}
		for i, r := range renewals {
			c, ok := claims.get(r.Token)
			if !ok || !errors.Is(errs[i], dibs.ErrLost) {
				continue
			}
			c.TTL = r.TTL
			if claimOne(ctx, s, c).State == store.Granted {
				errs[i] = nil
			}
		}
		return nil
	}
	h.settle = func(ctx context.Context, settlements []store.Settlement, errs []error) error {
		for _, x := range settlements {
			claims.drop(x.Token) // it is the end that is undone, not a settlement
		}
		return s.Settle(ctx, settlements, errs)
	}
	return h
}

func settleAnyToken(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []store.Settlement, errs []error) error {
		if err := s.Settle(ctx, settlements, errs); err != nil {
			return err
		}
		i, ok := s.(store.Inspector)
		for n, x := range settlements {
			if !ok || x.Outcome == store.Keep || !errors.Is(errs[n], dibs.ErrLost) {
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
	h := asked(s, func(c *store.Claim) {
		c.TTL = max(c.TTL/2, min(c.TTL, store.MinDuration))
	}, nil)
	h.renew = func(ctx context.Context, renewals []store.Renewal, errs []error) error {
		short := make([]store.Renewal, len(renewals))
		for i, r := range renewals {
			r.TTL = max(r.TTL/2, min(r.TTL, store.MinDuration))
			short[i] = r
		}
		return s.Renew(ctx, short, errs)
	}
	return h
}

// sessionEndsLease takes the server's end of each holder's session for reset when the grant has
// left. The grace is a thirtieth of the TTL, as a second is of 30 s. The holder's end stands
// until its next call, which is answered with ErrLost.
func sessionEndsLease(s dibs.Store) hooks {
	return asked(s, nil, func(c store.Claim, a *store.Answer) {
		if a.State != store.Granted || c.Mode == store.Look {
			return
		}
		time.AfterFunc(c.TTL/30, func() {
			settleOne(context.Background(), s, store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Abandon})
		})
	})
}

func claimAnew(s dibs.Store) hooks {
	var granted memory[store.Token, bool]
	return hooks{claim: func(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
		for _, c := range claims {
			if _, ok := granted.get(c.Token); ok && (c.Mode == store.Try || c.Mode == store.Queue) {
				settleOne(ctx, s, store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Release})
			}
		}
		if err := s.Claim(ctx, claims, answers); err != nil {
			return err
		}
		for i, a := range answers {
			if a.State == store.Granted {
				granted.set(claims[i].Token, true)
			}
		}
		return nil
	}}
}

func permitTooMany(s dibs.Store) hooks {
	return asked(s, func(c *store.Claim) {
		if !c.AtMostOnce && c.Permits < store.MaxPermits {
			c.Permits++
		}
	}, nil)
}

func permitsStay(s dibs.Store) hooks {
	var first memory[dibs.Key, int]
	return asked(s, func(c *store.Claim) {
		permits, ok := first.get(c.Key)
		if !ok {
			permits = c.Permits
			first.set(c.Key, permits)
		}
		c.Permits, c.Weight = permits, min(c.Weight, permits)
	}, nil)
}

func undoCounts(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []store.Settlement, errs []error) error {
		other := slices.Clone(settlements)
		for i := range other {
			if x := &other[i]; x.Outcome == store.Undo {
				x.Outcome = store.Abandon
			}
		}
		return s.Settle(ctx, other, errs)
	}}
}

func weightIgnored(s dibs.Store) hooks {
	return asked(s, func(c *store.Claim) { c.Weight = min(c.Weight, 1) }, nil)
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
	h := asked(s, nil, func(_ store.Claim, a *store.Answer) {
		if a.Fence != 0 {
			a.Fence = change(a.Fence)
		}
	})
	h.pushed = func(a store.Answer) store.Answer {
		a.Fence = change(a.Fence)
		return a
	}
	return h
}
