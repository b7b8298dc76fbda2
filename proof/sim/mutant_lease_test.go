package sim_test

import (
	"bytes"
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

func staleRecord(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []store.Settlement, errs []error) error {
		if err := s.Settle(ctx, settlements, errs); err != nil {
			return err
		}
		for i, x := range settlements {
			if x.Outcome != store.Keep || !errors.Is(errs[i], dibs.ErrLost) {
				continue
			}
			c := store.Claim{Key: x.Key, Token: store.NewToken(), TTL: store.PushedTTL, Permits: 1, Weight: 1}
			if claimOne(ctx, s, c).State != store.Granted {
				continue
			}
			x.Token = c.Token
			if settleOne(ctx, s, x) {
				errs[i] = nil
			}
		}
		return nil
	}}
}

func halfRecord(s dibs.Store) hooks {
	return asked(s, nil, func(_ store.Claim, a *store.Answer) {
		a.Record.Data = a.Record.Data[:len(a.Record.Data)/2]
	})
}

func otherBytes(s dibs.Store) hooks {
	return asked(s, nil, func(_ store.Claim, a *store.Answer) {
		if a.State == store.Done {
			a.Record.Data = append(bytes.Clone(a.Record.Data), '\n')
		}
	})
}

func mismatchIgnored(s dibs.Store) hooks {
	return asked(s, func(c *store.Claim) { c.Fingerprint = dibs.Fingerprint{} }, nil)
}

func answerLost(s dibs.Store) hooks {
	return hooks{settle: func(ctx context.Context, settlements []store.Settlement, errs []error) error {
		other := slices.Clone(settlements)
		for i := range other {
			if x := &other[i]; x.Outcome == store.Keep {
				x.Outcome, x.Data, x.Retention = store.Release, nil, 0
			}
		}
		return s.Settle(ctx, other, errs)
	}}
}

// oldRecord remembers every record that it has seen.
func oldRecord(s dibs.Store) hooks {
	var records memory[dibs.Key, []byte]
	return hooks{
		claim: cached(s, &records),
		settle: func(ctx context.Context, settlements []store.Settlement, errs []error) error {
			if err := s.Settle(ctx, settlements, errs); err != nil {
				return err
			}
			for i, x := range settlements {
				if _, ok := records.get(x.Key); x.Outcome == store.Keep && errs[i] == nil && !ok {
					records.set(x.Key, bytes.Clone(x.Data))
				}
			}
			return nil
		},
	}
}

// unwrittenRecord remembers records from when they are sent until the store has them,
// and so those that it refuses.
func unwrittenRecord(s dibs.Store) hooks {
	var records memory[dibs.Key, []byte]
	return hooks{
		claim: cached(s, &records),
		settle: func(ctx context.Context, settlements []store.Settlement, errs []error) error {
			for _, x := range settlements {
				if x.Outcome == store.Keep {
					records.set(x.Key, bytes.Clone(x.Data))
				}
			}
			if err := s.Settle(ctx, settlements, errs); err != nil {
				return err
			}
			for i, x := range settlements {
				if x.Outcome == store.Keep && errs[i] == nil {
					records.drop(x.Key)
				}
			}
			return nil
		},
	}
}

// cached is a Claim that is answered by what is remembered, if there is anything.
func cached(s dibs.Store, records *memory[dibs.Key, []byte]) func(context.Context, []store.Claim, []store.Answer) error {
	return func(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
		return part(ctx, claims, answers, s.Claim, func(i int) bool {
			c := &claims[i]
			data, ok := records.get(c.Key)
			if !ok || c.MaxAge == 0 || c.Mode == store.Reserve {
				return true
			}
			answers[i] = store.Answer{State: store.Done, Record: dibs.Record{Data: data, Left: c.MaxAge}}
			return false
		})
	}
}

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
