package conform

import (
	"slices"
	"strings"
	"testing"
)

// TestProfiles: what a profile leaves out is in the list, and not left out anyway.
func TestProfiles(t *testing.T) {
	t.Parallel()
	all := Cases()
	for _, a := range apis {
		for i, id := range a.without {
			c := find(all, id)
			if c == nil || c.Level == Extension || slices.Contains(a.without[:i], id) {
				t.Errorf("the profile %s leaves out %s: %v", a.profile, id, c)
			}
		}
		for _, c := range a.rules {
			if find(all, c.ID) != nil || !strings.HasPrefix(c.ID, string(a.profile)+"-") || len(c.Sources) == 0 {
				t.Errorf("the profile %s has the rule %s: %v", a.profile, c.ID, c)
			}
		}
	}
	if find(all, "no such profile") != nil {
		t.Error("there is a case that there is not")
	}
}
