package conform

import (
	"slices"
	"testing"
)

// TestProfiles: what a profile leaves out is in the list, and not left out anyway.
func TestProfiles(t *testing.T) {
	t.Parallel()
	all := Cases()
	for i, id := range notStripe {
		c := find(all, id)
		if c == nil || c.Level == Extension || slices.Contains(notStripe[:i], id) {
			t.Errorf("the profile stripe leaves out %s: %v", id, c)
		}
	}
	if find(all, "no such profile") != nil {
		t.Error("there is a case that there is not")
	}
}
