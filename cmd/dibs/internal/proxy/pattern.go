package proxy

import (
	"fmt"
	"regexp"
	"strings"
)

// pattern matches paths by segments: * is one segment, ** any number of segments. The zero
// pattern matches every path.
type pattern struct {
	text   string
	regexp *regexp.Regexp
}

func parsePattern(s string) (pattern, error) {
	if s == "" {
		return pattern{}, nil
	}
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		return pattern{}, fmt.Errorf("%q must begin with /", s)
	}
	var b strings.Builder
	for segment := range strings.SplitSeq(rest, "/") {
		switch {
		case segment == "**":
			b.WriteString("(/.*)?")
		case segment == "*":
			b.WriteString("/[^/]+")
		case strings.Contains(segment, "*"):
			return pattern{}, fmt.Errorf("%q: * stands for a whole segment, and ** for any number of segments", s)
		default:
			b.WriteString("/" + regexp.QuoteMeta(segment))
		}
	}
	expression, err := regexp.Compile("(?s)^" + b.String() + "$")
	return pattern{s, expression}, err
}

// String returns the pattern as it is written.
func (p pattern) String() string { return p.text }

// match reports whether a decoded path matches.
func (p pattern) match(path string) bool { return p.regexp == nil || p.regexp.MatchString(path) }
