package proxy

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// pattern matches paths by segments: * is one segment, ** any number of segments. The zero
// pattern matches every path.
type pattern struct {
	text   string
	regexp *regexp.Regexp
}

// cleaned returns a decoded path as the origins read it that clean paths: without empty
// segments, "." and "..". A route is for all spellings of its path, because the origin may
// take them for one. A slash at the end stays.
func cleaned(p string) string {
	if !strings.HasPrefix(p, "/") {
		return p // OPTIONS *
	}
	c := path.Clean(p)
	if c != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		c += "/"
	}
	return c
}

// parsePattern reads a pattern. Paths are compared decoded, so %XX stands for a character.
func parsePattern(s string) (pattern, error) {
	if s == "" {
		return pattern{}, nil
	}
	plain, err := url.PathUnescape(s)
	switch {
	case !strings.HasPrefix(s, "/"):
		return pattern{}, fmt.Errorf("%q must begin with /", s)
	case strings.ContainsAny(s, "?#"):
		return pattern{}, fmt.Errorf("%q: the query and the fragment are no part of the path; remove them, or write %%3F for ? and %%23 for #", s)
	case err != nil:
		return pattern{}, fmt.Errorf("%q: %w; write %%25 for the character %%", s, err)
	case !utf8.ValidString(plain):
		return pattern{}, fmt.Errorf("%q is not UTF-8; write * for such a segment", s)
	case cleaned(plain) != plain:
		return pattern{}, fmt.Errorf("%q: paths are compared without empty segments, . and ..; write %s", s, cleaned(plain))
	}
	var b strings.Builder
	for text := range strings.SplitSeq(s[1:], "/") {
		switch {
		case text == "**":
			b.WriteString("(/.*)?")
		case text == "*":
			b.WriteString("/[^/]+")
		case strings.Contains(text, "*"):
			return pattern{}, fmt.Errorf("%q: * stands for a whole segment, and ** for any number of segments; write %%2A for the character", s)
		default:
			plain, _ := url.PathUnescape(text)
			b.WriteString("/" + regexp.QuoteMeta(plain))
		}
	}
	return pattern{s, regexp.MustCompile("(?s)^" + b.String() + "$")}, nil
}

// UnmarshalText reads the pattern.
func (p *pattern) UnmarshalText(text []byte) (err error) {
	*p, err = parsePattern(string(text))
	return err
}

// String returns the pattern as it is written.
func (p pattern) String() string { return p.text }

// match reports whether a decoded path matches.
func (p pattern) match(decoded string) bool {
	return p.regexp == nil || p.regexp.MatchString(cleaned(decoded))
}
