package main

import (
	"testing"
	"time"
)

// TestPace: the announcement counts both sides of each round, and the line knows what is left from
// what the comparisons before it took.
func TestPace(t *testing.T) {
	c := config{rounds: 15, round: 700 * time.Millisecond}
	if got, want := c.announcement(30), "30 comparisons of 15 rounds take at least 11m12s, and the servers' starts\n"; got != want {
		t.Errorf("it says %q; want %q", got, want)
	}
	for want, got := range map[string]string{
		"1 of 30: first":                       pace(0, 30, "first", 0),
		"11 of 30, about 20m0s left: eleventh": pace(10, 30, "eleventh", 10*time.Minute),
		"30 of 30, about 1m0s left: the last":  pace(29, 30, "the last", 29*time.Minute),
	} {
		if got != want {
			t.Errorf("the line is %q; want %q", got, want)
		}
	}
}
