//go:build nightly

package s3_test

import (
	"context"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/casstore"
	"github.com/dibs-go/dibs/stores/casstore/s3"
)

func TestConformance(t *testing.T) {
	const tick = 50 * time.Millisecond
	server := servertest.S3(t)
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, _ time.Duration) *storetest.Subject {
			o := options(server.URL(), testkit.Own()+"/")
			o.Store = casstore.Options{Tick: tick}
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
					s, err := s3.Open(context.Background(), o)
					testkit.Must(t, err)
					open = append(open, s)
					return s
				},
				Restart: closeAll,
				Wipe: func() {
					closeAll()
					kv, err := s3.NewKV(o)
					testkit.Must(t, err)
					for {
						names, err := kv.List(context.Background(), "", "", 1000)
						testkit.Must(t, err)
						if len(names) == 0 {
							return
						}
						for _, name := range names {
							_, version, err := kv.Get(context.Background(), name)
							testkit.Must(t, err)
							testkit.Must(t, kv.Delete(context.Background(), name, version))
						}
					}
				},
			}
		},
		Lacks: map[storetest.Feature]string{storetest.Skew: "no wall clock decides anything"},
		// The machine may pause for longer than a tick. What is late by then is not lost. Each tick loses
		// the time of a call, and the server keeps files, so few properties are checked side by side.
		Short: 500 * time.Millisecond, Late: 3 * time.Second, Unsure: 5 * time.Second, Crowd: 100, Parallel: 4,
	})
}
