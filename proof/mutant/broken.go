package mutant

import (
	"context"
	"io"

	"github.com/dibs-go/dibs"
)

// broken is a store with other methods than its own.
type broken struct {
	dibs.Store // what is broken; called by the hooks
	hooks
}

// hooks take the place of a store's methods. Those that are nil leave them as they are.
type hooks struct {
	claim  func(context.Context, []dibs.Claim, []dibs.Answer) error
	renew  func(context.Context, []dibs.Renewal, []error) error
	settle func(context.Context, []dibs.Settlement, []error) error
	told   func(dibs.Answer) dibs.Answer // of a grant that is told
}

// by returns the Wrap of a mutant whose hooks are made for each store.
func by(breaks func(dibs.Store) hooks) func(dibs.Store) dibs.Store {
	return func(s dibs.Store) dibs.Store {
		b := &broken{Store: s, hooks: breaks(s)}
		i, inspects := s.(dibs.Inspector)
		switch n := s.(type) {
		case dibs.GrantNotifier:
			if inspects {
				return &struct {
					*broken
					dibs.Inspector
					grants
				}{b, i, grants{n, b}}
			}
			return &struct {
				*broken
				grants
			}{b, grants{n, b}}
		case dibs.Notifier:
			if inspects {
				return &struct {
					*broken
					dibs.Inspector
					dibs.Notifier
				}{b, i, n}
			}
			return &struct {
				*broken
				dibs.Notifier
			}{b, n}
		}
		if inspects {
			return &struct {
				*broken
				dibs.Inspector
			}{b, i}
		}
		return b
	}
}

// Claim implements dibs.Store.
func (b *broken) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if b.claim == nil {
		return b.Store.Claim(ctx, claims, answers)
	}
	return b.claim(ctx, claims, answers)
}

// Renew implements dibs.Store.
func (b *broken) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if b.renew == nil {
		return b.Store.Renew(ctx, renewals, errs)
	}
	return b.renew(ctx, renewals, errs)
}

// Settle implements dibs.Store.
func (b *broken) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if b.settle == nil {
		return b.Store.Settle(ctx, settlements, errs)
	}
	return b.settle(ctx, settlements, errs)
}

// Batching implements dibs.Batcher; that of a store that says nothing is the default.
func (b *broken) Batching() dibs.Batching {
	if x, ok := b.Store.(dibs.Batcher); ok {
		return x.Batching()
	}
	return dibs.Batching{}
}

// Prune implements dibs.Pruner; a store that cannot prune removes nothing.
func (b *broken) Prune(ctx context.Context, limit int) (int, error) {
	if x, ok := b.Store.(dibs.Pruner); ok {
		return x.Prune(ctx, limit)
	}
	return 0, nil
}

// Check implements dibs.Checker; a store that cannot check finds nothing.
func (b *broken) Check(ctx context.Context) ([]dibs.Finding, error) {
	if x, ok := b.Store.(dibs.Checker); ok {
		return x.Check(ctx)
	}
	return nil, nil
}

// Close closes the store, if it can be closed.
func (b *broken) Close() error {
	if x, ok := b.Store.(io.Closer); ok {
		return x.Close()
	}
	return nil
}

// Unwrap returns the store that is broken, for those who want what is not an optional
// interface of dibs.
func (b *broken) Unwrap() dibs.Store { return b.Store }

// grants tells grants as a broken store does.
type grants struct {
	dibs.GrantNotifier
	b *broken
}

// NotifyGrants implements dibs.GrantNotifier.
func (g grants) NotifyGrants(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	if g.b.told == nil {
		return g.GrantNotifier.NotifyGrants(wake)
	}
	return g.GrantNotifier.NotifyGrants(func(t dibs.Token, a dibs.Answer) {
		if a.State == dibs.Granted {
			a = g.b.told(a)
		}
		wake(t, a)
	})
}
