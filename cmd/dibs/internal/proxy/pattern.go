package proxy

import (
	"errors"
	"fmt"
	"strings"
)

// pattern matches paths by segments: * is one segment, ** any number of segments. The empty
// pattern matches every path.
type pattern []string

func parsePattern(s string) (pattern, error) {
	if s == "" {
		return nil, nil
	}
	rest, ok := strings.CutPrefix(s, "/")
	if !ok {
		return nil, fmt.Errorf("%q must begin with /", s)
	}
	segments := strings.Split(rest, "/")
	stars := 0
	for _, segment := range segments {
		switch {
		case segment == "**":
			stars++
		case segment != "*" && strings.Contains(segment, "*"):
			return nil, fmt.Errorf("%q: * stands for a whole segment, and ** for any number of segments", s)
		}
	}
	if stars > 1 {
		return nil, errors.New("there can be only one **")
	}
	return segments, nil
}

// String returns the pattern as it is written.
func (p pattern) String() string {
	if p == nil {
		return ""
	}
	return "/" + strings.Join(p, "/")
}

// match reports whether a decoded path matches.
func (p pattern) match(path string) bool {
	if p == nil {
		return true
	}
	rest, ok := strings.CutPrefix(path, "/")
	return ok && p.matchRest(rest, true)
}

// matchRest matches the rest of a path. more says that it has at least one segment, which may
// be empty.
func (p pattern) matchRest(rest string, more bool) bool {
	for ; len(p) > 0; p = p[1:] {
		if p[0] == "**" {
			return p[1:].matchAnywhere(rest, more)
		}
		if !more {
			return false
		}
		var head string
		head, rest, more = strings.Cut(rest, "/")
		if p[0] != head && (p[0] != "*" || head == "") {
			return false
		}
	}
	return !more
}

// matchAnywhere matches after any number of segments.
func (p pattern) matchAnywhere(rest string, more bool) bool {
	if len(p) == 0 {
		return true
	}
	for {
		if p.matchRest(rest, more) {
			return true
		}
		if !more {
			return false
		}
		_, rest, more = strings.Cut(rest, "/")
	}
}
