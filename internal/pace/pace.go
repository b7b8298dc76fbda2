// Package pace tells when the machine is too slow for a test of time: it stands still,
// because others have it.
package pace

import (
	"sync"
	"testing"
	"time"
)

// Watch says, until it is stopped, how late a frequent timer fires: for how long nothing
// happened on the machine. Stop returns when stood is not called any more.
func Watch(stood func(time.Duration)) (stop func()) {
	const beat = 5 * time.Millisecond
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(beat)
		defer tick.Stop()
		last := time.Now()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			stood(time.Since(last) - beat)
			last = time.Now()
		}
	})
	return func() {
		close(done)
		running.Wait()
	}
}

// tries is how many there are at most.
const tries = 5

// Retry makes a try, and again while one fails during which the machine stood still for
// longer than most: that one proves nothing. The test fails with the error of the first
// that has no such excuse, or of the fifth.
func Retry(t testing.TB, most time.Duration, try func() error) {
	t.Helper()
	for i := 1; ; i++ {
		var longest time.Duration
		stop := Watch(func(d time.Duration) { longest = max(longest, d) })
		err := try()
		stop()
		switch {
		case err == nil:
			return
		case longest <= most || i == tries:
			t.Error(err)
			return
		}
		t.Logf("try %d failed while the machine stood still for %v, so another is made: %v", i, longest.Round(time.Millisecond), err)
	}
}
