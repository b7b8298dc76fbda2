//go:build nightly

package etcd_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/casstore"
	"github.com/dibs-go/dibs/stores/casstore/etcd"
)

// The kit on a real etcd is nightly, because a paused machine moves the clock late, and then two
// properties ask for more than the store promises.
func TestConformance(t *testing.T) {
	const tick = 50 * time.Millisecond
	client := dial(t)
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, _ time.Duration) *storetest.Subject {
			o := &etcd.Options{Prefix: testkit.Own() + "/", Store: casstore.Options{Tick: tick}}
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
					s, err := etcd.Open(context.Background(), client, o)
					testkit.Must(t, err)
					open = append(open, s)
					return s
				},
				Restart: closeAll,
				Wipe: func() {
					closeAll()
					_, err := client.Delete(context.Background(), o.Prefix, clientv3.WithPrefix())
					testkit.Must(t, err)
				},
			}
		},
		Lacks: map[storetest.Feature]string{storetest.Skew: "no wall clock decides anything"},
		// The machine may pause for longer than a tick. What is late by then is not lost.
		Short: 500 * time.Millisecond, Late: 3 * time.Second, Unsure: 5 * time.Second, Crowd: 1000,
	})
}
