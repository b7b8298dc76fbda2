package upstream

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// ErrTarget says that net/http cannot send a target unchanged: it begins with two slashes
// and has a character that a URI cannot have (RFC 3986).
var ErrTarget = errors.New("the request target is not a valid URI")

// CheckTarget returns ErrTarget if the request's target cannot be sent unchanged.
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

// Direct points the request at the origin. Its target stays as the client sent it
// (inbound.RequestURI), after the origin's own path. The Host does not change.
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
		// net/http would escape some characters that a client may send.
		u.Opaque = path
	}
	out.URL = u
}

// originForm returns a target in origin form, which an origin expects (RFC 9112, section
// 3.2.2).
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

// plain reports whether net/http writes the path unchanged.
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
