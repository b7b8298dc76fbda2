package serve

import (
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/httpstore"
	"github.com/dibs-go/dibs/storetest"
)

// TestConformance: the store over two servers of one store does what every store must do.
func TestConformance(t *testing.T) {
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, _ time.Duration) *storetest.Backend {
			var servers [2]*rig
			fresh := func() {
				under := memory(t)
				for i := range servers {
					servers[i] = start(t, under, nil)
				}
			}
			fresh()
			opened := 0
			return &storetest.Backend{
				Open: func() dibs.Store {
					opened++
					addresses := []string{servers[opened%2].Listener.Addr().String(), servers[(opened+1)%2].Listener.Addr().String()}
					s, err := httpstore.Open("http://"+strings.Join(addresses, ","), nil)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { s.Close() })
					return s
				},
				Wipe: fresh,
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew:    "it reads no clock",
			storetest.Restart: "the store in memory below it has none",
			storetest.Pruner:  "the store below it prunes itself",
		},
	})
}
