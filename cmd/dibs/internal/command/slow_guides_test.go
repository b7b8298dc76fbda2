//go:build nightly

package command_test

import (
	"slices"
	"testing"
)

// TestSlowGuides: as TestGuides, for the pages that take longer or that need a server. The
// conformance kit's page is left out, because its command needs an implementation to check, and so
// is the page of TestDatabaseGuide.
func TestSlowGuides(t *testing.T) {
	for _, page := range pages(t) {
		if !slices.Contains(quick, page) && page != "reference/conformance.md" && page != databases && slices.ContainsFunc(blocks(t, page), func(b block) bool { return slices.Contains(runs, b.language) }) {
			t.Run(page, func(t *testing.T) { checkGuide(t, page) })
		}
	}
}
