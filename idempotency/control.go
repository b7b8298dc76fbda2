package idempotency

import (
	"strconv"
	"strings"
	"time"
)

// controlField is how an application decides, per answer, whether and for how
// long it is kept. It never leaves the process.
const controlField = "Idempotency-Control"

// control is what Idempotency-Control asks for.
type control struct {
	noStore bool
	maxAge  time.Duration // 0: the policy's retention
	ignored int           // directives that made no sense
}

// parseControl reads the field's lines. What makes no sense is ignored and
// counted, because the handler has run.
func parseControl(lines []string) control {
	var c control
	aged := false
	for _, line := range lines {
		if strings.Trim(line, " \t") == "" {
			c.ignored++
			continue
		}
		for directive := range strings.SplitSeq(line, ",") {
			name, value, valued := strings.Cut(strings.Trim(directive, " \t"), "=")
			switch {
			case name == "" && !valued: // lists may have empty elements
			case strings.EqualFold(name, "no-store") && !valued:
				c.noStore = true
			case strings.EqualFold(name, "max-age") && valued:
				age, ok := parseSeconds(value)
				switch {
				case !ok:
					c.ignored++
				case age == 0:
					c.noStore = true
				case aged:
					// Of two ages the shorter one promises less.
					c.maxAge = min(c.maxAge, age)
				default:
					c.maxAge, aged = age, true
				}
			default:
				c.ignored++
			}
		}
	}
	return c
}

// parseSeconds reads delta-seconds, cut to MaxRetention.
func parseSeconds(s string) (time.Duration, bool) {
	if s == "" || digits(s) != len(s) {
		return 0, false
	}
	const most = int64(MaxRetention / time.Second)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > most {
		n = most // only too long: all are digits
	}
	return time.Duration(n) * time.Second, true
}
