package backoff_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

// TestBackoff: pauses double from Min to Max, and half of each is random.
func TestBackoff(t *testing.T) {
	b := backoff.Exponential{Min: 10 * time.Millisecond, Max: time.Second}
	for failed, most := range map[int]time.Duration{
		0: b.Min, 1: b.Min, 2: 2 * b.Min, 7: 64 * b.Min, 8: b.Max, 64: b.Max, math.MaxInt: b.Max,
	} {
		for range 100 {
			if d := b.Pause(failed); d < most/2 || d > most {
				t.Fatalf("after %d failures the pause is %v; want %v to %v", failed, d, most/2, most)
			}
		}
	}
}

// TestSleep: Sleep and Wait end with their time or with the context's cause.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := backoff.Sleep(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		cause := errors.New("the cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(cause) })
		start = time.Now()
		err := (backoff.Exponential{Min: time.Hour, Max: time.Hour}).Wait(ctx, 1)
		if !errors.Is(err, cause) || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}
