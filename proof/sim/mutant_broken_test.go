package sim_test

import (
	"context"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// broken is a store with other methods than its own.
type broken struct {
	dibs.Store // what is broken; called by the hooks
	hooks
}

// hooks take the place of a store's methods. Those that are nil leave them as they are.
type hooks struct {
	claim  func(context.Context, []store.Claim, []store.Answer) error
	renew  func(context.Context, []store.Renewal, []error) error
	settle func(context.Context, []store.Settlement, []error) error
	pushed func(store.Answer) store.Answer // of a pushed grant
}

// by returns the Wrap of a mutant whose hooks are made for each store.
func by(breaks func(dibs.Store) hooks) func(dibs.Store) dibs.Store {
	return func(s dibs.Store) dibs.Store {
		b := &broken{Store: s, hooks: breaks(s)}
		if i, ok := s.(store.Inspector); ok {
			return &struct {
				*broken
				store.Inspector
			}{b, i}
		}
		return b
	}
}

// Claim implements dibs.Store.
func (b *broken) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if b.claim == nil {
		return b.Store.Claim(ctx, claims, answers)
	}
	return b.claim(ctx, claims, answers)
}

// Renew implements dibs.Store.
func (b *broken) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if b.renew == nil {
		return b.Store.Renew(ctx, renewals, errs)
	}
	return b.renew(ctx, renewals, errs)
}

// Settle implements dibs.Store.
func (b *broken) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if b.settle == nil {
		return b.Store.Settle(ctx, settlements, errs)
	}
	return b.settle(ctx, settlements, errs)
}

// Batching implements store.Batcher; that of a store that says nothing is the default.
func (b *broken) Batching() store.Batching {
	if x, ok := b.Store.(store.Batcher); ok {
		return x.Batching()
	}
	return store.Batching{}
}

// Notify implements store.Notifier; a store that cannot wake wakes no waiter.
func (b *broken) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	n, ok := b.Store.(store.Notifier)
	if !ok {
		return func() {}
	}
	return n.Notify(func(t store.Token, a store.Answer) {
		if a.State == store.Granted && b.pushed != nil {
			a = b.pushed(a)
		}
		wake(t, a)
	})
}
