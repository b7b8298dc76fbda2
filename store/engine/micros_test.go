package engine_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// TestMicros: durations are rounded up, because nothing may end early.
func TestMicros(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Microsecond: 1, time.Microsecond + 1: 2, time.Millisecond: 1000,
		store.AnyAge: 9223372036854776, store.AnyAge - time.Microsecond: 9223372036854775,
	} {
		if got := engine.Micros(d); got != want {
			t.Errorf("Micros(%d) = %d, not %d", d, got, want)
		}
	}
}
