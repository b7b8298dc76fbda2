package sqltest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// A Trouble is something that happens to a server, and error.type of the calls that fail then.
type Trouble struct {
	Type   string
	Happen func()
	Over   func() // nil: the next Trouble ends it
}

// ErrorTypes makes calls of a store while its server is in trouble. Metrics tell why they fail.
func ErrorTypes(t *testing.T, s store.Store, troubles ...Trouble) {
	t.Helper()
	var mu sync.Mutex
	var seen map[string]bool
	// The TTL is short, because a claim that a server gets to see after it was undone stands for
	// its TTL.
	client := Client(t, s, &dibs.Options{Timeout: 2 * time.Second, TTL: 5 * time.Second, ObserveStore: func(c dibs.StoreCall) {
		mu.Lock()
		defer mu.Unlock()
		if c.Err != nil {
			seen[errtype.Of(c.Err)] = true
		}
	}})
	work := func() error { return client.TryDo(t.Context(), "k", func(context.Context) error { return nil }) }
	testkit.Must(t, work())
	for _, trouble := range troubles {
		mu.Lock()
		seen = map[string]bool{}
		mu.Unlock()
		trouble.Happen()
		testkit.Eventually(t, "calls fail as "+trouble.Type, func() bool {
			_ = work()
			mu.Lock()
			defer mu.Unlock()
			if seen["_OTHER"] {
				t.Fatalf("%s: a call failed without a type", trouble.Type)
			}
			return seen[trouble.Type]
		})
		if trouble.Over != nil {
			trouble.Over()
			testkit.Eventually(t, "the server serves again", func() bool { return work() == nil })
		}
	}
	// So that the client finds nothing that it cannot undo when it is closed.
	testkit.Eventually(t, "the server serves again", func() bool { return work() == nil })
}
