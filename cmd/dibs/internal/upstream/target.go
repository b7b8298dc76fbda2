package upstream

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// ErrTarget: a target cannot be sent as it came. It begins with two slashes and has a
// character that no URI may have (RFC 3986).
var ErrTarget = errors.New("the request target is not a valid URI")

// CheckTarget returns ErrTarget, or nil.
func CheckTarget(r *http.Request) error {
	path, _, _ := strings.Cut(originForm(r.RequestURI), "?")
	if u := (&url.URL{Path: path}); strings.HasPrefix(path, "//") && !plain(path) {
		var err error
		if u.Path, err = url.PathUnescape(path); err == nil {
			u.RawPath = path
		}
		if u.EscapedPath() != path {
			return ErrTarget
		}
	}
	return nil
}

// Direct points the request at the origin, its target byte for byte as the
// client sent it (which is inbound.RequestURI), behind the origin's own path if
// it has one. The Host stays what it is. CheckTarget says which targets cannot be sent.
func (t *Transport) Direct(out, inbound *http.Request) {
	target := originForm(inbound.RequestURI)
	if target != "*" {
		target = t.prefix + target
	}
	path, query, hasQuery := strings.Cut(target, "?")
	u := &url.URL{Scheme: t.scheme, Host: t.host, RawQuery: query, ForceQuery: hasQuery && query == ""}
	switch {
	case plain(path):
		u.Path = path
	case strings.HasPrefix(path, "//"):
		// net/http takes an opaque part with two slashes for an authority.
		u.Path, u.RawPath = path, path
		if unescaped, err := url.PathUnescape(path); err == nil {
			u.Path = unescaped
		}
	default:
		// Its own writing of a path cleans up some characters that a client may send.
		u.Opaque = path
	}
	out.URL = u
}

// originForm returns a target in origin form: a proxy that stands before one origin
// speaks to it in that form (RFC 9112, section 3.2.2).
func originForm(target string) string {
	_, rest, ok := strings.Cut(target, "://")
	if !ok || strings.HasPrefix(target, "/") || target == "*" {
		return target
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0:
		return "/"
	case rest[i] == '?':
		return "/" + rest[i:]
	}
	return rest[i:]
}

// plain reports whether net/http writes the path as it is.
func plain(path string) bool {
	if path == "*" {
		return true
	}
	for i := range len(path) {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '/', c == '-', c == '_', c == '.', c == '~', c == '$', c == '&', c == '+', c == ',', c == ':', c == ';', c == '=', c == '@':
		default:
			return false
		}
	}
	return path != ""
}
