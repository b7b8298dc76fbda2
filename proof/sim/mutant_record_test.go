package sim_test

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

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
