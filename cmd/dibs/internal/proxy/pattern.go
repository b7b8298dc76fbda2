package proxy

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// pattern matches paths by segments: * is one segment, ** any number of segments. The zero
// pattern matches every path.
type pattern struct {
	text     string
	segments []segment
	regexp   *regexp.Regexp
}

// segment is a part of a pattern.
type segment struct {
	text      string // if it is neither of these
	one, many bool   // * and **
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
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		return pattern{}, fmt.Errorf("%q must begin with /", s)
	}
	if plain, err := url.PathUnescape(s); err == nil && cleaned(plain) != plain {
		return pattern{}, fmt.Errorf("%q: paths are compared without empty segments, . and ..; write %s", s, cleaned(plain))
	}
	p := pattern{text: s}
	var b strings.Builder
	for text := range strings.SplitSeq(rest, "/") {
		switch {
		case text == "**":
			p.segments = append(p.segments, segment{many: true})
			b.WriteString("(/.*)?")
			continue
		case text == "*":
			p.segments = append(p.segments, segment{one: true})
			b.WriteString("/[^/]+")
			continue
		}
		plain, err := unescapeSegment(s, text)
		if err != nil {
			return pattern{}, err
		}
		for part := range strings.SplitSeq(plain, "/") { // of %2F
			p.segments = append(p.segments, segment{text: part})
		}
		b.WriteString("/" + regexp.QuoteMeta(plain))
	}
	var err error
	p.regexp, err = regexp.Compile("(?s)^" + b.String() + "$")
	return p, err
}

// unescapeSegment returns the characters that a segment of the pattern s stands for.
func unescapeSegment(s, text string) (string, error) {
	switch {
	case strings.Contains(text, "*"):
		return "", fmt.Errorf("%q: * stands for a whole segment, and ** for any number of segments; write %%2A for the character", s)
	case strings.Contains(text, "?"):
		return "", fmt.Errorf("%q: the query is no part of the path; remove it from the ? on, or write %%3F for the character", s)
	case strings.Contains(text, "#"):
		return "", fmt.Errorf("%q: clients do not send what follows #; remove it, or write %%23 for the character", s)
	}
	plain, err := url.PathUnescape(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q: %w; write %%25 for the character %%", s, err)
	case !utf8.ValidString(plain):
		return "", fmt.Errorf("%q: %q is not UTF-8; write * for such a segment", s, text)
	}
	return plain, nil
}

// String returns the pattern as it is written.
func (p pattern) String() string { return p.text }

// match reports whether a decoded path matches.
func (p pattern) match(decoded string) bool {
	return p.regexp == nil || p.regexp.MatchString(cleaned(decoded))
}

// covers reports whether p matches every path that other matches. It takes /** for every path, which
// it is but for OPTIONS *. It misses some pairs in which a * is beside a **.
func (p pattern) covers(other pattern) bool {
	if !slices.ContainsFunc(p.segments, func(s segment) bool { return !s.many }) {
		return true
	}
	if other.text == "" {
		return false
	}
	// Only ** can match a **, because that may stand for an empty segment. So other can be read as a
	// path, and the last ** of p is the only one whose length must be tried.
	i, last, from := 0, -1, 0
	for j := 0; j < len(other.segments); {
		switch {
		case i < len(p.segments) && p.segments[i].many:
			last, from = i, j
			i++
		case i < len(p.segments) && p.segments[i].covers(other.segments[j]):
			i++
			j++
		case last >= 0:
			from++
			i, j = last+1, from
		default:
			return false
		}
	}
	return !slices.ContainsFunc(p.segments[i:], func(s segment) bool { return !s.many })
}

// covers reports whether s, which is not **, matches what other matches.
func (s segment) covers(other segment) bool {
	if s.one {
		return other.one || other.text != ""
	}
	return s == other
}
