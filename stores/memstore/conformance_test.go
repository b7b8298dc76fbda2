package memstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, &storetest.Harness{
		Virtual: true,
		New: func(t testing.TB, _ time.Duration) *storetest.Subject {
			return &storetest.Subject{
				Open: func() store.Store {
					s := open(t, nil)
					t.Cleanup(func() { emptied(t, s) })
					return s
				},
				// An empty store is what a restart leaves.
				Wipe: func() {},
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Processes: "the data lives in one process",
			storetest.Skew:      "it has no clock but the process's monotonic one",
			storetest.Restart:   "nothing outlives the process: a restart is a Wipe",
		},
	})
}

// emptied ends all that a property has left in a store, and checks that the store has
// counted right what it kept.
func emptied(t testing.TB, s *memstore.Store) {
	t.Helper()
	ctx := context.Background()
	for e, err := range s.List(ctx, store.Query{Places: true}) {
		testkit.Must(t, err)
		for _, p := range e.Places {
			x := []store.Settlement{{Key: e.Key, Token: p.Token}}
			testkit.Must(t, s.Settle(ctx, x, make([]error, 1)))
		}
		if _, err := s.ForceRelease(ctx, e.Key, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Forget(ctx, e.Key, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Prune(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if keys, bytes := s.Kept(); keys != 0 || bytes != 0 {
		t.Errorf("a store that was emptied has %d keys and %d bytes", keys, bytes)
	}
}

// open returns a new store that the end of the test closes.
func open(t testing.TB, o *memstore.Options) *memstore.Store {
	t.Helper()
	s, err := memstore.New(o)
	testkit.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}
