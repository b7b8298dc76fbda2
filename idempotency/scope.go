package idempotency

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/dialect"
)

// A ScopePart is a part of what tells principals apart; see Options.Scope.
type ScopePart struct {
	name string // for people to read
	// of appends the request's part; nothing if the request lacks it.
	of func([]byte, *http.Request) []byte
	// authorization says that the Authorization header counts.
	authorization bool
	// replaced reports whether an answer replaces the request's part; see warnReplaced.
	replaced func(r *http.Request, answer http.Header, keyed bool) bool
}

// String returns the part as the proxy's flag --scope names it.
func (p ScopePart) String() string { return p.name }

// ScopeCredentials are the credentials that servers commonly read: Authorization, and each of the
// headers that CredentialHeaders lists. All that a request has count together. It is the default.
var ScopeCredentials = ScopePart{name: "credentials", authorization: true,
	of:       func(b []byte, r *http.Request) []byte { return appendFieldsOf(b, r.Header, isCredential) },
	replaced: func(r *http.Request, answer http.Header, _ bool) bool { return replacesField(r, answer, isCredential) },
}

// ScopeAuthorization is the Authorization header, and no other credential.
var ScopeAuthorization = ScopePart{
	name: "authorization", authorization: true,
	of: func(b []byte, r *http.Request) []byte { return appendValues(b, r.Header["Authorization"]) },
	replaced: func(r *http.Request, answer http.Header, _ bool) bool {
		return replacesField(r, answer, func(sent string) bool { return sent == "authorization" })
	},
}

// ScopeNone tells no principals apart: all requests to one authority share keys.
var ScopeNone = ScopePart{name: "none"}

// ScopeHeader is the value of a header, such as one that an authenticating gateway sets. A request
// without the header lacks this part.
func ScopeHeader(name string) ScopePart {
	wanted := folded(name)
	counts := func(sent string) bool { return sent == wanted }
	return ScopePart{
		name:     "header:" + name,
		of:       func(b []byte, r *http.Request) []byte { return appendFieldsOf(b, r.Header, counts) },
		replaced: func(r *http.Request, answer http.Header, _ bool) bool { return replacesField(r, answer, counts) },
	}
}

// ScopeCookie is the value of a cookie, as it was sent. A request without the cookie lacks this
// part. It is for a cookie whose value stays the same for the session. If the value is the session,
// and thus changes with each answer, a retry may come from another principal; the Logger gets one
// warning.
func ScopeCookie(name string) ScopePart {
	return ScopePart{
		name: "cookie:" + name,
		of:   func(b []byte, r *http.Request) []byte { return appendValues(b, cookieValues(r.Header, name)) },
		replaced: func(r *http.Request, answer http.Header, keyed bool) bool {
			return replacesCookie(name, r, answer, keyed)
		},
	}
}

// ScopeFunc is what the function returns; a request for which it returns "" lacks this part. The
// name describes it in logs. A replay never reaches the application, which would verify a
// credential. So the function must return what another server has verified, or the whole
// credential.
func ScopeFunc(name string, of func(*http.Request) string) ScopePart {
	if of == nil {
		return ScopePart{name: name}
	}
	return ScopePart{name: name, of: func(b []byte, r *http.Request) []byte { return appendValues(b, []string{of(r)}) }}
}

// credentialHeaders are the headers beside Authorization in which servers commonly expect a
// credential, in lower case and in order.
var credentialHeaders = []string{
	"authentication", "circle-token", "fastly-key", "job-token", "private-token", "proxy-authorization", "token",
	"x-auth", "x-authorization", "x-consul-token", "x-figma-token", "x-functions-key", "x-gitlab-token", "x-jwt",
	"x-plex-token", "x-secret", "x-token", "x-vault-token", "x-zumo-auth",
}

// credentialEndings are the other names of such headers, and endings of names.
var credentialEndings = []string{
	"access-key", "access-token", "admin-secret", "api-auth", "api-key", "api-secret", "api-token", "apikey",
	"app-key", "app-secret", "app-token", "application-key", "auth-key", "auth-token", "client-key", "client-secret",
	"customer-key", "master-key", "secret-key", "service-key", "service-token", "session-token",
	"subscription-key", "user-token",
}

// CredentialHeaders returns the headers beside Authorization that ScopeCredentials reads, in lower
// case. "*-api-key" stands for Api-Key and every name that ends in
// -Api-Key. A "_" in a request's field counts as "-", because some servers read both
// alike.
func CredentialHeaders() []string {
	names := slices.Clone(credentialHeaders)
	for _, ending := range credentialEndings {
		names = append(names, "*-"+ending)
	}
	return names
}

var (
	credentialNames = setOf(append(slices.Clone(credentialHeaders), "authorization"))
	credentialEnds  = setOf(credentialEndings)
)

// isCredential reports whether a field with that folded name is a credential.
func isCredential(name string) bool {
	if credentialNames[name] {
		return true
	}
	for found := true; found; _, name, found = strings.Cut(name, "-") {
		if credentialEnds[name] {
			return true
		}
	}
	return false
}

func setOf(names []string) map[string]bool {
	all := make(map[string]bool, len(names))
	for _, name := range names {
		all[name] = true
	}
	return all
}

// appendFieldsOf appends names and values of the fields that count, so that two requests have the
// same only if they have the same fields; nothing if there is none.
func appendFieldsOf(b []byte, h http.Header, counts func(folded string) bool) []byte {
	var names []string
	for name, lines := range h {
		if len(lines) > 0 && counts(folded(name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		b = content.AppendLines(content.AppendCounted(b, name), h[name])
	}
	return b
}

// appendValues appends values, so that two values differ from each of them alone; nothing if there
// is none, or only an empty one.
func appendValues(b []byte, values []string) []byte {
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return b
	}
	return content.AppendLines(b, values)
}

// folded returns a field's name as the most tolerant server reads it: in any case, with "_" for
// "-".
func folded(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// principal returns the parts of the scope that a request has; nothing if it has none.
func (o *Options) principal(r *http.Request) (b []byte) {
	for i, part := range o.Scope {
		if part.of == nil {
			continue
		}
		if of := part.of(nil, r); len(of) > 0 {
			b = content.AppendCounted(binary.AppendUvarint(b, uint64(i)), string(of))
		}
	}
	return b
}

// scopeText returns the parts of the scope as the proxy's flag --scope has them.
func (o *Options) scopeText() string {
	names := make([]string, len(o.Scope))
	for i, part := range o.Scope {
		names[i] = part.name
	}
	return strings.Join(names, ",")
}

// scopeIsNone reports whether all requests are meant to share keys.
func (o *Options) scopeIsNone() bool {
	return !slices.ContainsFunc(o.Scope, func(p ScopePart) bool { return p.of != nil })
}

// changingSchemes are schemes of Authorization whose value differs with every request, so that a
// retry has another value than the first try. Schemes with HMAC in their name are, too.
var changingSchemes = setOf([]string{
	"aws", "aws4", "digest", "goog1", "goog4", "hawk", "http-signature", "mac", "negotiate", "ntlm", "oauth", "oss",
	"sharedkey", "sharedkeylite", "signature",
})

// changingScheme returns the scheme of the request's Authorization if that counts for the scope and
// is one of changingSchemes; "" otherwise.
func (o *Options) changingScheme(r *http.Request) string {
	if !slices.ContainsFunc(o.Scope, func(p ScopePart) bool { return p.authorization }) {
		return ""
	}
	for _, line := range r.Header["Authorization"] {
		scheme, _, _ := strings.Cut(strings.TrimLeft(strings.ReplaceAll(line, "\t", " "), " "), " ")
		scheme = folded(scheme)
		family, _, _ := strings.Cut(scheme, "-") // AWS4-HMAC-SHA256, GOOG4-RSA-SHA256
		if changingSchemes[scheme] || changingSchemes[family] || strings.Contains(scheme, "hmac") {
			return scheme
		}
	}
	return ""
}

// authority returns the host that the request is for, in lower case, without the dot that ends a
// full name. The default port is left out, also that of https behind a proxy that ends TLS.
func authority(r *http.Request) string {
	u := url.URL{Host: strings.ToLower(r.Host)}
	port := u.Port()
	if port == "443" || port == "80" && r.TLS == nil {
		port = ""
	}
	return net.JoinHostPort(strings.TrimSuffix(u.Hostname(), "."), port)
}

// keyPrefix is what the names of keys begin with, except those of calls of MCP (dialect.CallPrefix).
const keyPrefix = "http:"

// scopeBytes is how much of the scope's digest a key's name has: 128 bits.
const scopeBytes = 16

// keyName returns the name under which a request's key is stored: the digest of its scope, and the
// key as people know it.
func (o *Options) keyName(r *request, principal []byte, key string) string {
	b := append(make([]byte, 0, 256), "dibs http scope 1\x00"...)
	if o.KeyPer == KeyPerRequest {
		b = append(append(b[:0], "dibs http scope 1, request\x00"...), r.fingerprint[:]...)
	}
	b = content.AppendCounted(b, authority(r.Request))
	prefix := keyPrefix
	if r.call.Name != nil {
		prefix, b = dialect.CallPrefix, append(b, r.call.Name...)
	} else if o.KeyPer == KeyPerPath {
		path, _, _ := strings.Cut(dialect.TargetOf(r.Request), "?")
		b = content.AppendCounted(b, path)
	}
	sum := sha256.Sum256(append(b, principal...))
	b = base64.RawURLEncoding.AppendEncode(append(b[:0], prefix...), sum[:scopeBytes])
	return string(append(append(b, ':'), key...))
}

// KeyPart returns the client's key from the name under which a Middleware stores it. It returns
// false for any other name.
func KeyPart(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, keyPrefix)
	if !ok {
		rest, ok = strings.CutPrefix(name, dialect.CallPrefix)
	}
	n := base64.RawURLEncoding.EncodedLen(scopeBytes)
	if !ok || len(rest) <= n+1 || rest[n] != ':' {
		return "", false
	}
	return rest[n+1:], true
}
