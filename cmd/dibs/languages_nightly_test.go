//go:build nightly && unix

package main

import (
	"regexp"
	"testing"
)

func init() { short = regexp.MustCompile("") }

// TestLanguagesMatrix strikes processes that use the clients at each step of each call.
func TestLanguagesMatrix(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.test(t, l.matrix, "DIBS_MATRIX=1")
		})
	}
}
