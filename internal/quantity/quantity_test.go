package quantity_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/quantity"
)

func TestDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "500ms": 500 * time.Millisecond, "30s": 30 * time.Second, "24h": day, "-1s": -time.Second, "1h30m": 90 * time.Minute,
		"1d": day, "30d": 30 * day, "1d12h": day + 12*time.Hour, "0d": 0, "1d0s": day,
	} {
		d, err := quantity.Duration(text)
		if d != want || err != nil {
			t.Errorf("%q is %v, %v; want %v", text, d, err, want)
		}
		if again, err := quantity.Duration(quantity.DurationText(d)); again != d || err != nil {
			t.Errorf("%q comes back as %v, %v", quantity.DurationText(d), again, err)
		}
	}
	for _, text := range []string{"", "x", "30", "d", "-1d", "1.5d", "1dd", "1d-1h", "1d+1h", "12h1d", "1 d", "99999999d", "65535d2562047h"} {
		if d, err := quantity.Duration(text); err == nil || !strings.Contains(err.Error(), "write 30s, 5m, 24h or 30d") {
			t.Errorf("%q is %v, %v", text, d, err)
		}
	}
}

// TestDurationWithoutUnit: a number alone is mostly meant in seconds.
func TestDurationWithoutUnit(t *testing.T) {
	for text, want := range map[string]string{"30": "did you mean 30s?", "5": "did you mean 5s?", "1w": "", "1.5": "", "": ""} {
		_, err := quantity.Duration(text)
		if err == nil || !strings.HasSuffix(err.Error(), want) || want == "" && strings.Contains(err.Error(), "did you mean") {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1000": 1000, "1KB": 1000, "64KiB": 64 << 10, "8MiB": 8 << 20, "8 MiB": 8 << 20, "1GiB": 1 << 30, "8MB": 8e6, "1GB": 1e9, "5kB": 5000, "5KB": 5000,
	} {
		n, err := quantity.Size(text)
		if n != want || err != nil {
			t.Errorf("%q is %d, %v; want %d", text, n, err, want)
		}
		if again, err := quantity.Size(quantity.SizeText(n)); again != n || err != nil {
			t.Errorf("%q comes back as %d, %v", quantity.SizeText(n), again, err)
		}
	}
	for _, text := range []string{"", "x", "MiB", "-1", "1.5MiB", "8M", "8mib", "9223372036854775808", "9007199254740992KiB", "8 ", " 8"} {
		if n, err := quantity.Size(text); err == nil || !strings.Contains(err.Error(), "write bytes, or a number with KiB, MiB or GiB") {
			t.Errorf("%q is %d, %v", text, n, err)
		}
	}
}

// TestSmallSize: a size that lacks its unit is refused, with the sizes that it may be meant for.
func TestSmallSize(t *testing.T) {
	for _, text := range []string{"1", "8", "999", "08"} {
		n := strings.TrimLeft(text, "0")
		if size, err := quantity.Size(text); err == nil || !strings.Contains(err.Error(), "did you mean "+n+"MiB or "+n+"KiB?") {
			t.Errorf("%q is %d, %v", text, size, err)
		}
	}
}

func TestFlags(t *testing.T) {
	d, n := quantity.DurationFlag(time.Minute), quantity.SizeFlag(1<<20)
	if d.String() != "1m" || n.String() != "1MiB" || d.Set("x") == nil || n.Set("x") == nil || d.String() != "1m" || n.String() != "1MiB" {
		t.Errorf("after wrong texts: %v %v", &d, &n)
	}
	if d.Set("2d") != nil || n.Set("8MB") != nil || d.String() != "48h" || n.String() != "8000000" {
		t.Errorf("after right texts: %v %v", &d, &n)
	}
}
