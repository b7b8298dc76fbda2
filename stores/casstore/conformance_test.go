package casstore_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/casstore"
)

// TestConformance runs in bubbles, so that all properties are checked and days pass.
func TestConformance(t *testing.T) {
	conforms(t, func() wiped { return &casstore.Memory{} })
}

// TestConformanceToldOfChanges: the same on an engine that tells of changes.
func TestConformanceToldOfChanges(t *testing.T) {
	conforms(t, func() wiped { return &teller{} })
}

// wiped is a KV that can lose everything.
type wiped interface {
	casstore.KV
	Wipe()
}

func conforms(t *testing.T, fresh func() wiped) {
	const tick = 10 * time.Millisecond
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, _ time.Duration) *storetest.Subject {
			kv := fresh()
			var open []*casstore.Store
			closeAll := func() {
				for _, s := range open {
					testkit.Check(t, s.Close())
				}
				open = nil
			}
			t.Cleanup(closeAll)
			return &storetest.Subject{
				Open: func() store.Store {
					s, err := casstore.Open(t.Context(), kv, &casstore.Options{Tick: tick, MaxObject: 64 << 20, MaxWaiters: 1000, PruneEvery: 24 * time.Hour})
					testkit.Must(t, err)
					open = append(open, s)
					return s
				},
				Restart: closeAll,
				Wipe: func() {
					closeAll()
					kv.Wipe()
				},
			}
		},
		Lacks:   map[storetest.Feature]string{storetest.Skew: "no wall clock decides anything"},
		Virtual: true, Late: 200 * time.Millisecond, Unsure: 100 * time.Millisecond, Crowd: 300,
	})
}
