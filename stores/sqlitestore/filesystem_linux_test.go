package sqlitestore

import "testing"

// TestHasOffset: a time namespace differs from the host's own time.
func TestHasOffset(t *testing.T) {
	for text, want := range map[string]bool{
		"": false,
		"monotonic           0         0\nboottime            0         0\n": false,
		"monotonic           7         0\nboottime            0         0\n": false,
		"monotonic           0         0\nboottime      864000         0\n":  true,
		"monotonic           0         0\nboottime            0 500000000\n": true,
	} {
		if got := hasOffset(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
