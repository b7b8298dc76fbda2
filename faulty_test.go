package dibs_test

import (
	"context"
	"errors"
	"sync"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// faulty is a real store behind a line that a test can cut, slow down and
// listen to. It is batched like a store across a network.
type faulty struct {
	*memstore.Store

	mu     sync.Mutex
	claims [][]dibs.Claim // as they arrived
	renews [][]dibs.Renewal
	settls [][]dibs.Settlement

	// Called, when set, around every call of the store: the first returns an
	// error to lose the call, the second to lose its answer.
	before func(verb string) error
	after  func(verb string) error
}

func newFaulty(s *memstore.Store) *faulty { return &faulty{Store: s} }

// Batching hides that of memstore.
func (f *faulty) Batching() dibs.Batching { return dibs.Batching{} }

// set replaces what happens around calls.
func (f *faulty) set(before, after func(verb string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

func (f *faulty) around(verb string, call func() error) error {
	f.mu.Lock()
	before, after := f.before, f.after
	f.mu.Unlock()
	if before != nil {
		if err := before(verb); err != nil {
			return err
		}
	}
	if err := call(); err != nil {
		return err
	}
	if after != nil {
		return after(verb)
	}
	return nil
}

func (f *faulty) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	f.mu.Lock()
	f.claims = append(f.claims, append([]dibs.Claim(nil), claims...))
	f.mu.Unlock()
	return f.around("claim", func() error { return f.Store.Claim(ctx, claims, answers) })
}

func (f *faulty) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	f.mu.Lock()
	f.renews = append(f.renews, append([]dibs.Renewal(nil), renewals...))
	f.mu.Unlock()
	return f.around("renew", func() error { return f.Store.Renew(ctx, renewals, errs) })
}

func (f *faulty) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	f.mu.Lock()
	f.settls = append(f.settls, append([]dibs.Settlement(nil), settlements...))
	f.mu.Unlock()
	return f.around("settle", func() error { return f.Store.Settle(ctx, settlements, errs) })
}

// counts returns how many calls of each verb arrived.
func (f *faulty) counts() (claims, renews, settles int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.claims), len(f.renews), len(f.settls)
}

var errCut = errors.New("the line is cut")
