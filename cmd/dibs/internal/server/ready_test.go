package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestReadiness: checks within a second of an answer of the store have that answer.
func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r readiness
		asked, answers := 0, true
		check := func(want bool, count int) {
			t.Helper()
			got := r.check(func() bool {
				asked++
				time.Sleep(readyLimit)
				return answers
			})
			if got != want || asked != count {
				t.Errorf("ready is %v, want %v; the store was asked %d times, want %d", got, want, asked, count)
			}
		}
		check(true, 1)
		answers = false
		time.Sleep(readyFor - 1)
		check(true, 1)
		time.Sleep(1)
		check(false, 2)
		answers = true
		check(false, 2)
		time.Sleep(readyFor)
		check(true, 3)
	})
}
