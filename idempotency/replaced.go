package idempotency

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// warnReplaced warns if an answer replaces a part of the scope: the retry of a client that has the
// new value comes from another principal. keyed says that the answer is that of a run under a key.
func (m *Middleware) warnReplaced(r *http.Request, answer http.Header, keyed bool) {
	for _, part := range m.options.Scope {
		if part.replaced != nil && part.replaced(r, answer, keyed) {
			m.warn(&m.warned.replaced, r, "retries will not be recognised if each answer replaces a part of the scope, as this one did: "+
				"a session that is kept in its cookie has another value after each answer. "+
				"Name a header that an authenticating gateway sets in the scope", "part", part.name, "scope", m.options.scopeText())
		}
	}
}

// replacesCookie reports whether an answer gives the cookie a value that the request did not have.
// A cookie that the request did not have at all is a new session; that is of no interest if the
// request had no key. The end of a session is none either.
func replacesCookie(name string, r *http.Request, answer http.Header, keyed bool) bool {
	had := cookieValues(r.Header, name)
	if len(had) == 0 && !keyed {
		return false
	}
	for _, line := range answer["Set-Cookie"] {
		pair, _, _ := strings.Cut(line, ";")
		set, value, _ := strings.Cut(pair, "=")
		value = strings.Trim(value, " \t")
		if strings.Trim(set, " \t") != name || value == "" || slices.Contains(had, value) {
			continue
		}
		cookie, err := http.ParseSetCookie(line)
		if err == nil && (cookie.MaxAge < 0 || !cookie.Expires.IsZero() && cookie.Expires.Before(time.Now())) {
			continue
		}
		return true
	}
	return false
}

// replacesField reports whether an answer has another value for a field that counts and that the
// request had, as servers that give out a new token with each answer do.
func replacesField(r *http.Request, answer http.Header, counts func(folded string) bool) bool {
	for name, had := range r.Header {
		if set := answer[name]; len(set) > 0 && len(had) > 0 && set[0] != "" && !slices.Equal(set, had) && counts(folded(name)) {
			return true
		}
	}
	return false
}

// cookieValues returns the values of a cookie, as they were sent. net/http drops cookies that other
// servers accept, such as those with a quote or a backslash in their value. Without them two
// sessions would be one.
func cookieValues(h http.Header, name string) (values []string) {
	for pair := range strings.SplitSeq(strings.Join(h["Cookie"], ";"), ";") {
		if sent, value, _ := strings.Cut(pair, "="); strings.Trim(sent, " \t") == name {
			values = append(values, strings.Trim(value, " \t"))
		}
	}
	return values
}
