package backoff_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

// TestPlaceOfTheNextWaiter: a waiter that asks a moment after half a second, because the lease
// in its way expires then, is not far back. Its place must not outlast it by six seconds.
func TestPlaceOfTheNextWaiter(t *testing.T) {
	for left := backoff.Near - 2*time.Millisecond; left <= backoff.Near+2*time.Millisecond; left += 100 * time.Microsecond {
		interval, _ := backoff.Next(true, 0, left, 0)
		if placeTTL := backoff.PlaceTTL(interval); placeTTL != backoff.Asks*backoff.Near || interval >= placeTTL {
			t.Errorf("a lease that expires in %v: the waiter asks after %v and its place lasts %v", left, interval, placeTTL)
		}
	}
	if interval, _ := backoff.Next(true, 100, time.Minute, 0); backoff.PlaceTTL(interval) != backoff.Asks*backoff.Far {
		t.Errorf("a waiter far back asks after %v and its place lasts %v", interval, backoff.PlaceTTL(interval))
	}
}
