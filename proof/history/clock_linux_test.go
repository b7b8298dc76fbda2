package history

import (
	"bufio"
	"strings"
	"testing"
	"time"
)

// TestClock: time goes on, as fast as everywhere.
func TestClock(t *testing.T) {
	outer := time.Now()
	before := Now()
	inner := time.Now()
	for time.Since(inner) < 5*time.Millisecond {
	}
	least := time.Since(inner)
	d := Now() - before
	if most := time.Since(outer); d < least || d > most {
		t.Errorf("%v passed between %v and %v", d, least, most)
	}
}

// TestNamespace: how far the clock of a time namespace is ahead is read as the kernel
// writes it.
func TestNamespace(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic      172800 500000000\nboottime       604800         0\n": 48*time.Hour + 500*time.Millisecond,
		"monotonic       -3600         0\nboottime            0         0\n": -time.Hour,
		"boottime         3600         0\n":                                  0,
		"monotonic something else\n":                                         0,
		"":                                                                   0,
	} {
		if got := readOffset(bufio.NewScanner(strings.NewReader(text))); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}
