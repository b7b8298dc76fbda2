package memstore_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
	"github.com/dibs-go/dibs/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, &storetest.Harness{
		Virtual: true,
		New: func(t testing.TB, _ time.Duration) *storetest.Backend {
			return &storetest.Backend{
				Open: func() dibs.Store { return open(t, nil) },
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

// open returns a new store that the end of the test closes.
func open(t testing.TB, o *memstore.Options) *memstore.Store {
	t.Helper()
	s, err := memstore.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
