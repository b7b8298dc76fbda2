package mysqlstore

import (
	"context"
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
	return s.parts(ctx, all, &elements{
		key:  func(i int) dibs.Key { return claims[i].Key },
		size: func(int) int { return 0 },
		fail: func(i int, err error) { answers[i] = dibs.Answer{Err: err} },
		run:  func(ctx context.Context, part []int) error { return s.claim(ctx, part, claims, answers) },
	})
}

// claim makes the claims of one part.
func (s *Store) claim(ctx context.Context, part []int, claims []dibs.Claim, answers []dibs.Answer) error {
	deep := map[string]bool{}
	o := &terms{maxWaiters: s.options.MaxWaiters, tells: s.waiting.tells()}
	start := time.Now()
	how := looking
	for _, i := range part {
		if claims[i].Mode != dibs.Look {
			how = creating
		}
	}
	b := newBatch(s.names, nil, how)
	for _, i := range part {
		answers[i] = dibs.Answer{}
		k := keyOf(claims[i].Key)
		b.want(k, claims[i].Token)
		if !claims[i].Redeems.IsZero() {
			b.want(k, claims[i].Redeems)
		}
	}
	err := s.work(ctx, s.front, b, deep, func() error {
		for _, i := range part {
			if err := b.states[keyOf(claims[i].Key)].claim(&claims[i], o, &answers[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		s.waiting.heard(part, claims, answers, start)
	}
	return err
}
