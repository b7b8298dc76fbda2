package sim_test

import (
	"context"
	"slices"
	"sync"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// memory is what a mutant remembers, by key or token. It is small: a history is.
type memory[K comparable, V any] struct {
	mu sync.Mutex
	of map[K]V
}

func (m *memory[K, V]) set(k K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = map[K]V{}
	}
	m.of[k] = v
}

func (m *memory[K, V]) get(k K) (v V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok = m.of[k]
	return v, ok
}

func (m *memory[K, V]) drop(k K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, k)
}

// part makes a call with the elements that pick picks alone, and puts their answers
// where they belong.
func part[Q, A any](ctx context.Context, qs []Q, as []A, call func(context.Context, []Q, []A) error, pick func(int) bool) error {
	var which []int
	var some []Q
	for i := range qs {
		if pick(i) {
			which, some = append(which, i), append(some, qs[i])
		}
	}
	if len(some) == 0 {
		return nil
	}
	got := make([]A, len(some))
	if err := call(ctx, some, got); err != nil {
		return err
	}
	for j, i := range which {
		as[i] = got[j]
	}
	return nil
}

// asked returns hooks that change what is claimed, and what is answered.
func asked(s dibs.Store, change func(*store.Claim), answer func(store.Claim, *store.Answer)) hooks {
	return hooks{claim: func(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
		other := slices.Clone(claims)
		if change != nil {
			for i := range other {
				change(&other[i])
			}
		}
		if err := s.Claim(ctx, other, answers); err != nil {
			return err
		}
		if answer != nil {
			for i := range answers {
				answer(claims[i], &answers[i])
			}
		}
		return nil
	}}
}

// claimOne makes one claim; the zero Answer is that of a call that failed.
func claimOne(ctx context.Context, s dibs.Store, c store.Claim) store.Answer {
	answers := make([]store.Answer, 1)
	if err := s.Claim(ctx, []store.Claim{c}, answers); err != nil {
		return store.Answer{}
	}
	return answers[0]
}

// settleOne makes one settlement and reports whether it is done.
func settleOne(ctx context.Context, s dibs.Store, x store.Settlement) bool {
	errs := make([]error, 1)
	return s.Settle(ctx, []store.Settlement{x}, errs) == nil && errs[0] == nil
}
