package main

import (
	"fmt"
	"time"
)

// least returns how long a number of comparisons takes at least: most have two sides, and a round
// to warm up.
func (c config) least(comparisons int) time.Duration {
	return time.Duration(comparisons) * 2 * time.Duration(c.rounds+1) * c.round
}

// announcement says, before the first comparison, how long all of them take.
func (c config) announcement(comparisons int) string {
	return fmt.Sprintf("%d comparisons of %d rounds take at least %v, and the servers' starts\n",
		comparisons, c.rounds, c.least(comparisons).Round(time.Second))
}

// pace is the line of a terminal while a comparison runs: which one it is, and how long the rest
// takes if it is as slow as those before.
func pace(done, all int, name string, took time.Duration) string {
	text := fmt.Sprintf("%d of %d", done+1, all)
	if done > 0 {
		left := took / time.Duration(done) * time.Duration(all-done)
		text += fmt.Sprintf(", about %v left", left.Round(time.Minute))
	}
	return text + ": " + name
}
