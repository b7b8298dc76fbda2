package upstream

import (
	"net/http"
	"net/url"
	"strings"
)

// Direct points the request at the origin, its target byte for byte as the
// client sent it (which is inbound.RequestURI), behind the origin's own path if
// it has one. The Host stays what it is.
func (t *Transport) Direct(out, inbound *http.Request) {
	prefix, target := t.Target(inbound)
	out.URL = t.locate(prefix+target, out.Host)
}

// Target returns the request target that the origin gets, in two parts: the
// origin's own path, and that of the request as the client sent it.
func (t *Transport) Target(inbound *http.Request) (prefix, target string) {
	target = inbound.RequestURI
	if rest, ok := absolute(target); ok {
		target = rest
	}
	if target == "*" {
		return "", target
	}
	return t.prefix, target
}

// Host returns the Host that the origin gets: the client's, and the origin's own
// if the client, one of HTTP/1.0, named none.
func (t *Transport) Host(inbound *http.Request) string { return hostOr(inbound.Host, t.host) }

// absolute returns the origin form of a target in absolute form: a proxy that
// stands before one origin speaks to it in origin form (RFC 9112, 3.2.2).
func absolute(target string) (string, bool) {
	if strings.HasPrefix(target, "/") || target == "*" {
		return "", false
	}
	_, rest, ok := strings.Cut(target, "://")
	if !ok {
		return "", false
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0:
		return "/", true
	case rest[i] == '?':
		return "/" + rest[i:], true
	}
	return rest[i:], true
}

// locate returns a URL that net/http writes as the target. Its own writing of
// a path cleans up some characters that a client may have sent, so there are
// three ways, from the usual to the odd.
func (t *Transport) locate(target, host string) *url.URL {
	path, query, hasQuery := strings.Cut(target, "?")
	u := &url.URL{Scheme: t.scheme, Host: t.host, RawQuery: query, ForceQuery: hasQuery && query == ""}
	if plain(path) {
		u.Path = path
		return u
	}
	if !strings.HasPrefix(path, "//") {
		u.Opaque = path
		return u
	}
	// net/http takes an opaque part that begins with two slashes for an
	// authority and puts the scheme before it. It gets an authority, and what
	// it writes is cut off again: by its own HTTP/2, and by our conn.
	u.Opaque = "//" + hostOr(host, t.host) + path
	return u
}

// stripped returns what net/http will put before the target; "" mostly.
func stripped(req *http.Request) string {
	if !strings.HasPrefix(req.URL.Opaque, "//") {
		return ""
	}
	return req.URL.Scheme + "://" + hostOr(req.Host, req.URL.Host)
}

func hostOr(host, other string) string {
	if host == "" {
		return other
	}
	return host
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
