package history

import (
	"bufio"
	"strings"
	"testing"
	"time"
)

// TestClock: time goes on, as fast as everywhere.
func TestClock(t *testing.T) {
	before, start := Now(), time.Now()
	for time.Since(start) < 5*time.Millisecond {
	}
	after, took := Now(), time.Since(start)
	if d := after - before; d < 5*time.Millisecond || d > took+time.Second {
		t.Errorf("%v passed in %v", d, took)
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
