package idempotency

import (
	"strconv"
	"strings"
	"time"
)

// controlField is how an application decides, per answer, whether and for how long it is kept. It
// is removed from every answer.
const controlField = "Idempotency-Control"

// control is what Idempotency-Control asks for.
type control struct {
	noStore bool
	asked   bool          // for maxAge
	maxAge  time.Duration // default: Options.Retention
}

// control parses the field's lines. It ignores directives that are malformed, because the handler
// has run.
func (o *Options) control(lines []string) control {
	c := control{maxAge: o.Retention}
	for _, line := range lines {
		for directive := range strings.SplitSeq(line, ",") {
			name, value, valued := strings.Cut(strings.TrimSpace(directive), "=")
			age, isAge := parseSeconds(value)
			switch {
			case strings.EqualFold(name, "no-store") && !valued, strings.EqualFold(name, "max-age") && isAge && age == 0:
				c.noStore = true
			case !strings.EqualFold(name, "max-age") || !isAge: // another directive, or a malformed one
			case c.asked: // of two ages the shorter promises less
				c.maxAge = min(c.maxAge, age)
			default:
				c.asked, c.maxAge = true, age
			}
		}
	}
	return c
}

// parseSeconds parses a number of seconds, cut to MaxRetention.
func parseSeconds(s string) (time.Duration, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	const most = int64(MaxRetention / time.Second)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > most {
		n = most // the number is only too long
	}
	return time.Duration(n) * time.Second, true
}
