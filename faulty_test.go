package dibs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// faulty is a real store behind a line that a test can cut, slow down and
// listen to. It is batched like a store across a network.
type faulty struct {
	*memstore.Store

	mu     sync.Mutex
	claims [][]store.Claim // as they arrived
	renews [][]store.Renewal
	settls [][]store.Settlement

	// Called, when set, around every call of the store: the first returns an
	// error to lose the call, the second to lose its answer.
	before func(verb string) error
	after  func(verb string) error
}

func newFaulty(s *memstore.Store) *faulty { return &faulty{Store: s} }

// withFaults runs a test in a bubble, with a store that can be made to fail and a client of it.
func withFaults(t *testing.T, test func(t *testing.T, s *faulty, c *dibs.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		test(t, s, newClient(t, s, nil))
	})
}

// Batching hides that of memstore.
func (f *faulty) Batching() store.Batching { return store.Batching{} }

// set replaces what happens around calls.
func (f *faulty) set(before, after func(verb string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

// failing fails the calls of that verb.
func failing(call string, err error) func(verb string) error {
	return func(verb string) error {
		if verb == call {
			return err
		}
		return nil
	}
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

func (f *faulty) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	f.mu.Lock()
	f.claims = append(f.claims, append([]store.Claim(nil), claims...))
	f.mu.Unlock()
	return f.around("claim", func() error { return f.Store.Claim(ctx, claims, answers) })
}

func (f *faulty) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	f.mu.Lock()
	f.renews = append(f.renews, append([]store.Renewal(nil), renewals...))
	f.mu.Unlock()
	return f.around("renew", func() error { return f.Store.Renew(ctx, renewals, errs) })
}

func (f *faulty) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	f.mu.Lock()
	f.settls = append(f.settls, append([]store.Settlement(nil), settlements...))
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
