package casstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/casstore"
)

// TestConformance runs in bubbles, so that all properties are checked and days pass.
func TestConformance(t *testing.T) {
	conforms(t, 0, func() wiped { return &casstore.Memory{} })
}

// TestConformanceToldOfChanges: the same on an engine that tells of changes, for processes of which the
// first ones know less of the time.
func TestConformanceToldOfChanges(t *testing.T) {
	conforms(t, 60*time.Millisecond, func() wiped { return &teller{} })
}

// ahead is a clock whose upper bound is higher.
type ahead struct {
	casstore.Clock
	by time.Duration
}

func (a ahead) Now(ctx context.Context) (least, most int64, err error) {
	least, most, err = a.Clock.Now(ctx)
	return least, most + a.by.Microseconds(), err
}

// wiped is a KV that can lose everything.
type wiped interface {
	casstore.KV
	Wipe()
}

// conforms runs the kit. The upper bound of the time of the n-th process is ahead by an n-th of by.
func conforms(t *testing.T, by time.Duration, fresh func() wiped) {
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
					clock := ahead{casstore.NewRegister(kv, &casstore.RegisterOptions{Tick: tick}), by / time.Duration(len(open)+1)}
					s, err := casstore.Open(t.Context(), kv, &casstore.Options{Clock: clock, Tick: tick, MaxObject: 64 << 20, MaxWaiters: 1000, PruneEvery: 24 * time.Hour})
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
		Virtual: true, Late: 200 * time.Millisecond, Unsure: 100*time.Millisecond + by, Crowd: 300,
	})
}
