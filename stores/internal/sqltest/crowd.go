package sqltest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Crowd is clients of several stores that work without a break.
type Crowd struct {
	t     testing.TB
	s     Store
	done  atomic.Int64 // cycles
	stop  context.CancelFunc
	group sync.WaitGroup
}

// NewCrowd starts a crowd on stores that share their tables. No test disturbs the connections of
// the last store.
func NewCrowd(t testing.TB, stores ...Store) *Crowd {
	t.Helper()
	c := &Crowd{t: t, s: stores[len(stores)-1]}
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	var inside [4]atomic.Pointer[dibs.Lease]
	var answers sync.Map
	var number atomic.Int64
	var clients []*dibs.Client
	for _, s := range stores {
		// If a store cannot be reached, its waiters notice soon, and its leases expire soon.
		clients = append(clients, Client(t, s, &dibs.Options{TTL: 2 * time.Second, Timeout: 5 * time.Second}))
	}
	for g := range 16 {
		client := clients[g%len(clients)]
		c.group.Go(func() {
			for ctx.Err() == nil {
				n := rand.IntN(len(inside))
				err := client.Do(ctx, fmt.Sprint("lock ", n), func(ctx context.Context) error {
					lease, _ := dibs.FromContext(ctx)
					// Until is never later than what the server grants. The time is read after the swap,
					// because this caller may have paused before it, and its lease may have expired.
					other := inside[n].Swap(lease)
					if now := time.Now(); other != nil && now.Before(other.Until()) && now.Before(lease.Until()) {
						t.Error("two hold a key")
					}
					inside[n].CompareAndSwap(lease, nil)
					return nil
				})
				key := fmt.Sprint("once ", rand.IntN(200))
				mine := fmt.Sprint(number.Add(1))
				got, wrong := dibs.Once(ctx, client, key, nil, func(context.Context) (string, error) { return mine, nil })
				if wrong == nil {
					if first, there := answers.LoadOrStore(key, got); there && first != got {
						t.Errorf("%s was answered %v and %v", key, first, got)
					}
				}
				if err == nil && wrong == nil {
					c.done.Add(1)
				}
			}
		})
	}
	return c
}

// GoOn waits until the crowd has made that many more cycles.
func (c *Crowd) GoOn(more int64) {
	c.t.Helper()
	want := c.done.Load() + more
	testkit.Eventually(c.t, "work goes on", func() bool { return c.done.Load() >= want })
}

// End ends the crowd. It has left only records then.
func (c *Crowd) End() {
	c.t.Helper()
	c.stop()
	c.group.Wait()
	testkit.Eventually(c.t, "nothing but records is left", func() bool {
		for e, err := range c.s.List(c.t.Context(), store.Query{}) {
			if err != nil || e.Condition != store.ConditionDone && e.Condition != store.ConditionAbandoned {
				return false
			}
		}
		return true
	})
}
