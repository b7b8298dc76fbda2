//go:build nightly

package command_test

import (
	"os"
	"slices"
	"testing"
)

// TestSlowGuides: as TestGuides, for the guides that take longer or that need a server.
func TestSlowGuides(t *testing.T) {
	pages, err := os.ReadDir(guides)
	must(t, err)
	for _, page := range pages {
		if !slices.Contains(quick, page.Name()) {
			t.Run(page.Name(), func(t *testing.T) { checkGuide(t, page.Name()) })
		}
	}
}
