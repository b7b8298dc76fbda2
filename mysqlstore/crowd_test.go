package mysqlstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// crowd is clients of several stores that do what clients do, again and again.
type crowd struct {
	t     *testing.T
	s     *Store
	done  atomic.Int64 // how much
	stop  context.CancelFunc
	group sync.WaitGroup
}

// newCrowd begins with a store for each of the stores' ways to the server.
func newCrowd(t *testing.T, stores ...*Store) *crowd {
	t.Helper()
	c := &crowd{t: t, s: stores[len(stores)-1]}
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	var inside [4]atomic.Pointer[context.Context]
	var answers sync.Map
	var number atomic.Int64
	var clients []*dibs.Client
	for _, s := range stores {
		clients = append(clients, newClient(t, s, &dibs.Options{TTL: 2 * time.Second}))
	}
	for g := range 16 {
		client := clients[g%len(clients)]
		c.group.Go(func() {
			for ctx.Err() == nil {
				n := rand.IntN(len(inside))
				err := client.Do(ctx, fmt.Sprint("lock ", n), func(ctx context.Context) error {
					if other := inside[n].Swap(&ctx); other != nil && ctx.Err() == nil && (*other).Err() == nil {
						t.Error("two hold a key")
					}
					inside[n].CompareAndSwap(&ctx, nil)
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

// goOn waits until that much more is done.
func (c *crowd) goOn(more int64) {
	c.t.Helper()
	want := c.done.Load() + more
	eventually(c.t, 40*time.Second, "work goes on", func() bool { return c.done.Load() >= want })
}

// end ends it, and sees to it that nobody is left.
func (c *crowd) end() {
	c.t.Helper()
	c.stop()
	c.group.Wait()
	eventually(c.t, 20*time.Second, "nothing but records is left", func() bool {
		for e, err := range c.s.List(c.t.Context(), dibs.Query{}) {
			if err != nil || e.Condition != dibs.ConditionDone && e.Condition != dibs.ConditionAbandoned {
				return false
			}
		}
		return true
	})
}
