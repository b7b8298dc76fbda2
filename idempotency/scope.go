package idempotency

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strings"
)

// ScopeAuthorization makes the Authorization header the principal, and only it.
func ScopeAuthorization(r *http.Request) string { return scopeValues(r.Header["Authorization"]) }

// ScopeNone puts all keys into one scope: of one authority, unless
// Options.AnyAuthority says otherwise.
func ScopeNone(*http.Request) string { return "" }

// ScopeHeader makes the value of a header the principal, and only it; a request
// without it is anonymous.
func ScopeHeader(name string) func(*http.Request) string {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) string { return scopeValues(r.Header[name]) }
}

// ScopeCookie makes the value of a cookie the principal, and only it; a request
// without it is anonymous.
func ScopeCookie(name string) func(*http.Request) string {
	return func(r *http.Request) string {
		cookies := r.CookiesNamed(name)
		values := make([]string, len(cookies))
		for i, c := range cookies {
			values[i] = c.Value
		}
		return scopeValues(values)
	}
}

// scopeValues makes one principal of several values, so that neither of two
// credentials in one request is taken for the other alone. A header's value has
// no line break.
func scopeValues(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values, "\n")
}

// keyPrefix begins the names of all keys of HTTP requests.
const keyPrefix = "http:"

// scopeBytes is how much of the scope's digest a key's name has: 128 bits.
const scopeBytes = 16

// keyName returns the name under which a request's key is kept: the scope's
// digest, and the key as people know it. buf is scratch.
func (o *Options) keyName(r *http.Request, key string, buf []byte) (name string, scratch []byte) {
	b := buf[:0]
	b = append(b, "dibs http scope 1\x00"...)
	authority := ""
	if !o.AnyAuthority {
		authority = r.Host
	}
	b = binary.AppendUvarint(b, uint64(len(authority)))
	for i := range len(authority) {
		c := authority[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A' // host names know no case
		}
		b = append(b, c)
	}
	// The kind of credential counts: a cookie is never an Authorization.
	switch {
	case o.Scope != nil:
		if principal := o.Scope(r); principal != "" {
			b = append(b, 'f')
			b = append(b, principal...)
		}
	case len(r.Header["Authorization"]) > 0:
		b = append(b, 'a')
		b = append(b, scopeValues(r.Header["Authorization"])...)
	case o.SessionCookie != "":
		if principal := ScopeCookie(o.SessionCookie)(r); principal != "" {
			b = append(b, 'c')
			b = append(b, principal...)
		}
	}
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
