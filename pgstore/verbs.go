package pgstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

// Claim implements dibs.Store.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	process := s.waiting.address()
	call := engine.NewCall(len(claims), func(i int) (dibs.Key, error) { return claims[i].Key, claims[i].Validate() },
		func(i int, err error) { answers[i] = dibs.Answer{Err: err} })
	call.Plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.claimPlain(ctx, part, call.Keys, claims, answers, process)
	}
	call.Rest = func(ctx context.Context, part []int) error {
		o := &engine.Terms{MaxWaiters: s.options.MaxWaiters, Process: process}
		how, wants := looking, engine.Tokens{}
		for _, i := range part {
			c := &claims[i]
			if c.Mode != dibs.Look {
				how = locking
			}
			wants[call.Keys[i]] = append(wants[call.Keys[i]], c.Token, c.From)
		}
		return s.work(ctx, s.front, how, wants, func(b *engine.Batch) {
			for _, i := range part {
				answers[i] = dibs.Answer{}
				b.State(call.Keys[i]).Claim(&claims[i], o, &answers[i])
			}
		})
	}
	err := s.calls.Make(ctx, call)
	if err == nil {
		s.waiting.heard(call, claims, answers, process)
	}
	return err
}

// Renew implements dibs.Store, with one statement.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	call := engine.NewCall(len(renewals), func(i int) (dibs.Key, error) { return renewals[i].Key, renewals[i].Validate() },
		func(i int, err error) { errs[i] = err })
	call.Size = func(i int) int { return len(renewals[i].Progress) }
	call.Plain = func(ctx context.Context, part []int) ([]int, error) {
		return nil, s.renew(ctx, part, call.Keys, renewals, errs)
	}
	return s.calls.Make(ctx, call)
}

// Settle implements dibs.Store.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	call := engine.NewCall(len(settlements), func(i int) (dibs.Key, error) {
		return settlements[i].Key, cmp.Or(settlements[i].Validate(), s.fits(&settlements[i]))
	}, func(i int, err error) { errs[i] = err })
	call.Size = func(i int) int { return len(settlements[i].Data) }
	call.Plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.settlePlain(ctx, part, call.Keys, settlements, errs)
	}
	call.Rest = func(ctx context.Context, part []int) error {
		wants := engine.Tokens{}
		for _, i := range part {
			wants[call.Keys[i]] = append(wants[call.Keys[i]], settlements[i].Token)
		}
		return s.work(ctx, s.back, locking, wants, func(b *engine.Batch) {
			for _, i := range part {
				if errs[i] = nil; !b.State(call.Keys[i]).Settle(&settlements[i]) {
					errs[i] = dibs.ErrLost
				}
			}
		})
	}
	err := s.calls.Make(ctx, call)
	s.waiting.left(settlements)
	return err
}

// fits returns an error when a record is too large.
func (s *Store) fits(x *dibs.Settlement) error {
	if n := len(x.Data); x.Outcome == dibs.Keep && n > s.options.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", dibs.ErrTooLarge, n, s.options.MaxRecord)
	}
	return nil
}
