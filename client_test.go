package dibs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// newStore returns an empty store that is closed with the test.
func newStore(t *testing.T) *memstore.Store {
	t.Helper()
	s, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, s.Close()) })
	return s
}

// newClient returns a client that is closed with the test.
func newClient(t *testing.T, s dibs.Store, o *dibs.Options) *dibs.Client {
	t.Helper()
	c, err := dibs.New(s, o)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, c.Close()) })
	return c
}

// inMemory runs a test in a bubble, with a store and a client of it.
func inMemory(t *testing.T, test func(t *testing.T, s *memstore.Store, c *dibs.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		test(t, s, newClient(t, s, nil))
	})
}

// empty fails the test unless the store holds nothing at all, once the
// background has come to rest.
func empty(t *testing.T, s store.Inspector) {
	t.Helper()
	synctest.Wait()
	for e, err := range s.List(t.Context(), store.Query{}) {
		testkit.Must(t, err)
		t.Errorf("left behind: %+v", e)
	}
}

// noWaiters fails the test if a waiter has a place in a queue.
func noWaiters(t *testing.T, s store.Inspector) {
	t.Helper()
	for e, err := range s.List(t.Context(), store.Query{}) {
		if err != nil || e.Waiters != 0 {
			t.Errorf("%d places are left, %v", e.Waiters, err)
		}
	}
}

func TestNamespacesNeverMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		a := newClient(t, s, &dibs.Options{Namespace: "a"})
		b := newClient(t, s, &dibs.Options{Namespace: "b"})
		err := a.Do(t.Context(), "k", func(ctx context.Context) error {
			return b.TryDo(ctx, "k", func(context.Context) error { return nil })
		})
		testkit.Check(t, err)
	})
}

func TestOptionsAreValidated(t *testing.T) {
	s := newStore(t)
	clients := map[string]*dibs.Options{
		"Options.Namespace": {Namespace: "a b"},
		"Options.TTL":       {TTL: time.Millisecond},
		"Options.Wait":      {Wait: -1},
		"Options.Timeout":   {Timeout: -1},
	}
	for field, o := range clients {
		if _, err := dibs.New(s, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := dibs.New(nil, nil); err == nil {
		t.Error("New without a store returned no error")
	}
	c := newClient(t, s, nil)
	calls := map[string]*dibs.AcquireOptions{
		"AcquireOptions.TTL":     {TTL: 1},
		"AcquireOptions.Wait":    {Wait: -1},
		"AcquireOptions.Permits": {Permits: 2, AtMostOnce: true},
		"AcquireOptions.MaxAge":  {MaxAge: -1},
	}
	for field, o := range calls {
		if _, err := c.Acquire(t.Context(), "k", o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	// A field that does not count for a call is refused, not ignored.
	wait := dibs.AcquireOptions{Wait: time.Second}
	p, _, err := c.Reserve(t.Context(), "place", time.Hour, nil)
	testkit.Must(t, err)
	for want, call := range map[string]func() error{
		"AcquireOptions.Wait is not for TryAcquire": func() error { _, err := c.TryAcquire(t.Context(), "k", &wait); return err },
		"AcquireOptions.Wait is not for TryRedeem": func() error {
			_, err := c.TryRedeem(t.Context(), p, &dibs.RedeemOptions{AcquireOptions: wait})
			return err
		},
		"OnceOptions.Wait is not for TryOnce": func() error {
			_, err := dibs.TryOnce(t.Context(), c, "k", &dibs.OnceOptions{Wait: time.Second}, func(context.Context) (int, error) { return 0, nil })
			return err
		},
		"AcquireOptions.Wait and Detach are not for Lead": func() error { return c.Lead(t.Context(), "k", &wait, func(context.Context) error { return nil }) },
		"AtMostOnce are not for RLock":                    func() error { _, err := c.RLock(t.Context(), "k", &dibs.AcquireOptions{AtMostOnce: true}); return err },
		"RedeemOptions.Grace is -1ns":                     func() error { _, err := c.Redeem(t.Context(), p, &dibs.RedeemOptions{Grace: -1}); return err },
		"PlaceOptions.Grace is -1ns": func() error {
			_, err := c.Prolong(t.Context(), p, time.Hour, &dibs.PlaceOptions{Grace: -1})
			return err
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", store.MaxKey+1)} {
		if _, err := c.Acquire(t.Context(), key, nil); err == nil {
			t.Errorf("a key of %d bytes was accepted", len(key))
		}
	}
}

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
