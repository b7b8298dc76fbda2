//go:build nightly

package pgstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/wire"
)

func TestStorm(t *testing.T) {
	t.Parallel()
	suite().Storm(t)
}

// TestReserveInCutAtAnyTime: so it is whenever the connection is lost.
func TestReserveInCutAtAnyTime(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"pgx", "sql"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, shared().URL(), nil)
			for i := range 30 {
				after := rand.N(time.Duration(1+24*(i%2)) * 200 * time.Microsecond)
				cut := make(chan struct{})
				b.commitOver(t, way, fmt.Sprintf("cut %d, after %v", i, after), func(w *wire.Wire) {
					time.AfterFunc(after, func() {
						w.Cut()
						close(cut)
					})
				}, func() { <-cut })
			}
		})
	}
}
