package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net"
	"net/http"
	"slices"
	"strings"
)

// A ScopePart is a part of what tells principals apart; see Options.Scope.
type ScopePart struct {
	name string // for people to read
	// of appends the request's; nothing when it lacks this part.
	of func([]byte, *http.Request) []byte
	// authorization says that the Authorization header counts.
	authorization bool
}

// String describes the part as the proxy's flag --scope names it.
func (p ScopePart) String() string { return p.name }

// ScopeCredentials are the credentials that servers commonly read: Authorization, and
// each of the headers that CredentialHeaders lists. All that a request has count
// together. It is the default.
var ScopeCredentials = ScopePart{name: "credentials", authorization: true,
	of: func(b []byte, r *http.Request) []byte { return appendFieldsOf(b, r.Header, credentials) },
}

// ScopeAuthorization is the Authorization header, and no other credential.
var ScopeAuthorization = ScopePart{
	name: "authorization", authorization: true,
	of: func(b []byte, r *http.Request) []byte { return appendValues(b, r.Header["Authorization"]) },
}

// ScopeNone tells nobody apart: all requests to one authority share keys.
var ScopeNone = ScopePart{name: "none"}

// ScopeHeader is the value of a header: that of an authenticating gateway, say. A
// request without the header lacks this part.
func ScopeHeader(name string) ScopePart {
	only := fieldSet{names: map[string]bool{string(appendFolded(nil, name)): true}}
	return ScopePart{name: "header:" + name, of: func(b []byte, r *http.Request) []byte { return appendFieldsOf(b, r.Header, only) }}
}

// ScopeCookie is the value of a cookie, as it was sent. A request without the cookie lacks
// this part.
func ScopeCookie(name string) ScopePart {
	return ScopePart{name: "cookie:" + name, of: func(b []byte, r *http.Request) []byte {
		// net/http drops cookies that other servers accept, such as those with a quote or a
		// backslash in their value. Without them two sessions would be one.
		var values []string
		for _, line := range r.Header["Cookie"] {
			for pair := range strings.SplitSeq(line, ";") {
				if sent, value, _ := strings.Cut(pair, "="); strings.Trim(sent, " \t") == name {
					values = append(values, strings.Trim(value, " \t"))
				}
			}
		}
		return appendValues(b, values)
	}}
}

// ScopeFunc is what the function returns; a request for which it returns "" lacks this
// part. The name describes it in logs. A replay never reaches the application, so the
// function must not take a credential's word for who sends it: it returns what somebody
// has verified, or the whole credential.
func ScopeFunc(name string, of func(*http.Request) string) ScopePart {
	if of == nil {
		return ScopePart{name: name}
	}
	return ScopePart{name: name, of: func(b []byte, r *http.Request) []byte { return appendValues(b, []string{of(r)}) }}
}

// credentialHeaders are the headers beside Authorization in which servers commonly
// expect a credential, in lower case and in order.
var credentialHeaders = []string{
	"authentication", "circle-token", "fastly-key", "job-token", "private-token", "proxy-authorization", "token",
	"x-auth", "x-authorization", "x-consul-token", "x-figma-token", "x-functions-key", "x-gitlab-token", "x-jwt",
	"x-plex-token", "x-secret", "x-token", "x-vault-token", "x-zumo-auth",
}

// credentialEndings are what the other names of such headers end with, or are.
var credentialEndings = []string{
	"access-key", "access-token", "admin-secret", "api-auth", "api-key", "api-secret", "api-token", "apikey",
	"app-key", "app-secret", "app-token", "application-key", "auth-key", "auth-token", "client-key", "client-secret",
	"customer-key", "master-key", "secret-key", "service-key", "service-token", "session-token",
	"subscription-key", "user-token",
}

// CredentialHeaders returns the headers beside Authorization that ScopeCredentials looks
// at, in lower case. "*-api-key" is Api-Key and every name that ends in -Api-Key. A "_" in
// a request's field counts as "-", because there are servers that read both alike.
func CredentialHeaders() []string {
	names := slices.Clone(credentialHeaders)
	for _, ending := range credentialEndings {
		names = append(names, "*-"+ending)
	}
	return names
}

// A fieldSet is a set of fields by their folded names.
type fieldSet struct {
	names   map[string]bool
	endings map[string]bool // what names of its fields end with, after a hyphen, or are
}

// has reports whether a field is in the set.
func (s fieldSet) has(folded []byte) bool {
	if s.names[string(folded)] {
		return true
	}
	for found := len(s.endings) > 0; found; _, folded, found = bytes.Cut(folded, hyphen) {
		if s.endings[string(folded)] {
			return true
		}
	}
	return false
}

var hyphen = []byte("-")

// credentials are the fields that count as credentials.
var credentials = fieldSet{
	names:   setOf(append(slices.Clone(credentialHeaders), "authorization")),
	endings: setOf(credentialEndings),
}

func setOf(names []string) map[string]bool {
	all := make(map[string]bool, len(names))
	for _, name := range names {
		all[name] = true
	}
	return all
}

// appendFieldsOf appends names and values of the fields that count, so that two requests
// have the same only if they have the same fields; nothing when there is none.
func appendFieldsOf(b []byte, h http.Header, counts fieldSet) []byte {
	var space [64]byte // a name in it is one that nobody keeps
	names := make([]string, 0, 8)
	for name, lines := range h {
		if len(lines) > 0 && counts.has(appendFolded(space[:0], name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		b = appendLines(appendCounted(b, name), h[name])
	}
	return b
}

// appendValues appends values, so that neither of two in one request is taken for the other
// alone; nothing when there is none but an empty one.
func appendValues(b []byte, values []string) []byte {
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return b
	}
	return appendLines(b, values)
}

// appendFolded appends a field's name as the laxest server reads it: in any case, with "_"
// for "-".
func appendFolded(dst []byte, name string) []byte {
	for i := range len(name) {
		c := name[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '_':
			c = '-'
		}
		dst = append(dst, c)
	}
	return dst
}

// appendPrincipal appends whose key a request's is; nothing when the request has no part
// of the scope.
func (o *Options) appendPrincipal(b []byte, r *http.Request) []byte {
	for i, part := range o.Scope {
		if part.of == nil {
			continue
		}
		before := len(b)
		b = binary.AppendUvarint(b, uint64(i))
		start := len(b)
		if b = part.of(b, r); len(b) == start {
			b = b[:before]
			continue
		}
		b = binary.BigEndian.AppendUint64(b, uint64(len(b)-start)) // nothing of it counts as another part's
	}
	return b
}

// scopeIsNone reports whether nobody is meant to be told apart.
func (o *Options) scopeIsNone() bool {
	return !slices.ContainsFunc(o.Scope, func(p ScopePart) bool { return p.of != nil })
}

// changingSchemes are schemes of Authorization whose value differs with every request, so
// that no retry has that of the first try. So is every scheme with HMAC in its name.
var changingSchemes = setOf([]string{
	"aws", "aws4", "digest", "goog1", "goog4", "hawk", "http-signature", "mac", "negotiate", "ntlm", "oauth", "oss",
	"sharedkey", "sharedkeylite", "signature",
})

// changingScheme returns the scheme of the request's Authorization if that counts for
// the scope and is one of changingSchemes; "" otherwise.
func (o *Options) changingScheme(r *http.Request) string {
	if !slices.ContainsFunc(o.Scope, func(p ScopePart) bool { return p.authorization }) {
		return ""
	}
	var space [64]byte
	for _, line := range r.Header["Authorization"] {
		line, _, _ = strings.Cut(strings.TrimLeft(strings.ReplaceAll(line, "\t", " "), " "), " ")
		scheme := appendFolded(space[:0], line)
		family, _, _ := bytes.Cut(scheme, hyphen) // AWS4-HMAC-SHA256, GOOG4-RSA-SHA256
		if changingSchemes[string(scheme)] || changingSchemes[string(family)] || bytes.Contains(scheme, []byte("hmac")) {
			return string(scheme)
		}
	}
	return ""
}

// authority returns the host that the request is for: in lower case, without the dot
// that ends a full name and without the port that the scheme has anyway.
func authority(r *http.Request) string {
	host := strings.ToLower(r.Host) // host names know no case
	if !strings.Contains(host, ":") {
		return strings.TrimSuffix(host, ".")
	}
	if name, port, err := net.SplitHostPort(host); err == nil && (port == "443" || port == "80" && r.TLS == nil || port == "") {
		// Whoever ends TLS before this server leaves the port of https.
		if host = name; strings.Contains(name, ":") {
			host = "[" + name + "]"
		}
	}
	if name, port, err := net.SplitHostPort(host); err == nil {
		return net.JoinHostPort(strings.TrimSuffix(name, "."), port)
	}
	return strings.TrimSuffix(host, ".")
}

// keyPrefix begins the names of all keys of HTTP requests.
const keyPrefix = "http:"

// scopeBytes is how much of the scope's digest a key's name has: 128 bits.
const scopeBytes = 16

// keyName returns the name under which a request's key is kept: the digest of its scope,
// and the key as people know it. A key that the sender derives, of an event that it may
// send to several endpoints, counts for the path of the request alone. buf is scratch.
func (o *Options) keyName(r *http.Request, principal []byte, key string, buf []byte) (name string, scratch []byte) {
	b := append(buf[:0], "dibs http scope 1\x00"...)
	if !o.AnyAuthority {
		b = appendCounted(b, authority(r))
	}
	if o.Key != nil {
		path, _, _ := strings.Cut(targetOf(r), "?")
		b = appendCounted(b, path)
	}
	b = append(b, principal...)
	sum := sha256.Sum256(b)
	b = append(b[:0], keyPrefix...)
	b = base64.RawURLEncoding.AppendEncode(b, sum[:scopeBytes])
	b = append(b, ':')
	b = append(b, key...)
	return string(b), b
}

// KeyPart returns the key as the client knows it from the name of a key that a
// Middleware made, and false for any other name.
func KeyPart(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, keyPrefix)
	if !ok {
		return "", false
	}
	n := base64.RawURLEncoding.EncodedLen(scopeBytes)
	if len(rest) <= n+1 || rest[n] != ':' {
		return "", false
	}
	return rest[n+1:], true
}
