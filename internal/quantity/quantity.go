// Package quantity reads and writes durations and sizes, as flags and files have them.
package quantity

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// day is the length of a day in a duration.
const day = 24 * time.Hour

// Duration returns the duration that a text names, as Go writes it, with or without days before
// it: 500ms, 30s, 5m, 24h, 30d, 1d12h. The error says what to write.
func Duration(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a duration: write 30s, 5m, 24h or 30d", text)
	if text != "" && strings.Trim(text, "0123456789") == "" {
		wrong = fmt.Errorf("%w; did you mean %ss?", wrong, text)
	}
	days, rest, found := strings.Cut(text, "d")
	if !found {
		days, rest = "", text
	}
	var d time.Duration
	if found {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
			return 0, wrong
		}
		d = time.Duration(n) * day
	}
	if found && rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || d+more < d && found {
		return 0, wrong
	}
	return d + more, nil
}

// DurationText returns a duration without its zeros: 24h and not 24h0m0s. A duration of 0 is "0".
func DurationText(d time.Duration) string {
	s := d.String()
	switch {
	case d == 0:
		return "0"
	case strings.HasSuffix(s, "h0m0s"):
		return strings.TrimSuffix(s, "0m0s")
	case strings.HasSuffix(s, "m0s"):
		return strings.TrimSuffix(s, "0s")
	}
	return s
}

// units are the units of sizes, in bytes.
var units = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3},
}

// leastSize is the least size but 0, in bytes. What is smaller lacks its unit.
const leastSize = 1000

// Size returns the number of bytes that a text names: 0, 5000, 64KiB, 8MiB, 8MB. MiB are 1,048,576
// bytes, and MB are 1,000,000. Fewer than 1,000 bytes are refused. The error says what to write.
func Size(text string) (int64, error) {
	digits, unit := text, int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			digits, unit = strings.TrimRight(rest, " "), u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || int64(n) > (1<<63-1)/unit {
		return 0, fmt.Errorf("%q is not a size: write bytes, or a number with KiB, MiB or GiB", text)
	}
	size := int64(n) * unit
	if 0 < size && size < leastSize {
		return 0, fmt.Errorf("%q is %d bytes, which is too small; did you mean %dMiB or %dKiB?", text, size, n, n)
	}
	return size, nil
}

// SizeText returns a size with the largest binary unit that divides it.
func SizeText(n int64) string {
	for _, u := range units[:3] {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
