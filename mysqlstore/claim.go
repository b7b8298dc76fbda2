package mysqlstore

import (
	"context"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// Claim implements dibs.Store.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := make([]int, 0, len(claims))
	for i := range claims {
		answers[i] = dibs.Answer{Err: claims[i].Validate()}
		if answers[i].Err == nil {
			all = append(all, i)
		}
	}
	start := time.Now()
	keys := make([]string, len(claims))
	for _, i := range all {
		keys[i] = keyOf(claims[i].Key)
	}
	err := s.parts(ctx, all, &elements{
		key:  func(i int) dibs.Key { return claims[i].Key },
		size: func(int) int { return 0 },
		fail: func(i int, err error) { answers[i] = dibs.Answer{Err: err} },
		plain: func(ctx context.Context, part []int) ([]int, map[string]bool, error) {
			return s.claimPlain(ctx, part, keys, claims, answers)
		},
		busy: func(ctx context.Context, part []int, deep map[string]bool) error {
			return s.claimBusy(ctx, part, keys, claims, answers, deep)
		},
	})
	if err == nil {
		s.waiting.heard(all, claims, answers, start)
	}
	return err
}

// claimBusy makes claims of keys of which there is more to know than a row.
func (s *Store) claimBusy(ctx context.Context, part []int, keys []string, claims []dibs.Claim, answers []dibs.Answer, deep map[string]bool) error {
	o := &terms{maxWaiters: s.options.MaxWaiters, tells: s.waiting.tells()}
	how := looking
	if slices.ContainsFunc(part, func(i int) bool { return claims[i].Mode != dibs.Look }) {
		how = creating
	}
	b := s.newBatch(nil, how)
	for _, i := range part {
		answers[i] = dibs.Answer{}
		b.want(keys[i], claims[i].Token)
		if !claims[i].Redeems.IsZero() {
			b.want(keys[i], claims[i].Redeems)
		}
	}
	return s.work(ctx, s.front, b, deep, func() error {
		for _, i := range part {
			if err := b.states[keys[i]].claim(&claims[i], o, &answers[i]); err != nil {
				return err
			}
		}
		return nil
	})
}
