package idempotency

import (
	"net/http"
	"strings"
)

// Response fields of our own.
const (
	replayedField = "Idempotent-Replayed"
	bypassedField = "Idempotency-Bypassed"
	// bypassedForStore is the only value of bypassedField.
	bypassedForStore = "store-unavailable"
	// notKeptField marks a tombstone in the store.
	notKeptField = "Idempotency-Answer-Not-Kept"
	// traceField names the trace of the first run in the store.
	traceField = "Idempotency-Answer-Trace"
)

// neverStored are the fields that belong to one connection, one moment or one
// request, and not to the answer. In lower case.
var neverStored = map[string]bool{
	// hop by hop (those that Connection names come on top), and framing
	"connection": true, "keep-alive": true, "proxy-connection": true, "te": true,
	"trailer": true, "transfer-encoding": true, "upgrade": true, "content-length": true,
	"proxy-authenticate": true, "proxy-authentication-info": true, "proxy-authorization": true,
	// the moment
	"date": true, "age": true, "server-timing": true,
	// the credentials of the first asker
	"www-authenticate": true, "authentication-info": true,
	// the request
	"ratelimit": true, "x-request-id": true, "traceparent": true, "tracestate": true,
	// ours
	"idempotency-control": true, "idempotent-replayed": true, "idempotency-bypassed": true,
	"idempotency-answer-not-kept": true,
}

// longestNeverStored bounds the names that are looked up.
const longestNeverStored = 32

// A filter says which response fields are stored.
type filter struct {
	setCookie bool
	more      map[string]bool // Options.NotStored, in lower case
}

func newFilter(o *Options) filter {
	f := filter{setCookie: o.KeepSetCookie}
	for _, name := range o.NotStored {
		if f.more == nil {
			f.more = make(map[string]bool)
		}
		f.more[strings.ToLower(name)] = true
	}
	return f
}

// stores reports whether the field is stored. connection is the Connection
// field's value lines.
func (f *filter) stores(name string, connection []string) bool {
	if !isToken(name) {
		return false // net/http does not send it either
	}
	var buf [longestNeverStored]byte
	if len(name) <= len(buf) {
		lower := buf[:len(name)]
		for i := range len(name) {
			c := name[i]
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			lower[i] = c
		}
		switch {
		case neverStored[string(lower)]:
			return false
		case string(lower) == "set-cookie":
			return f.setCookie && !f.more["set-cookie"]
		}
	}
	if hasPrefixFold(name, "ratelimit-") || hasPrefixFold(name, "x-ratelimit-") {
		return false
	}
	if f.more != nil && f.more[strings.ToLower(name)] {
		return false
	}
	return len(connection) == 0 || !hasListToken(connection, name)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// hasListToken reports whether a comma-separated list field has the token, in
// any case.
func hasListToken(lines []string, token string) bool {
	for _, line := range lines {
		for element := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.Trim(element, " \t"), token) {
				return true
			}
		}
	}
	return false
}

// isOurs reports whether an answer's field, as a handler spells it, is one that
// only the Middleware sends.
func isOurs(name string) bool {
	if len(name) < len(controlField) {
		return false
	}
	name = strings.TrimPrefix(name, http.TrailerPrefix)
	switch len(name) {
	case len(controlField): // and that of replayedField
		return strings.EqualFold(name, controlField) || strings.EqualFold(name, replayedField)
	case len(bypassedField):
		return strings.EqualFold(name, bypassedField)
	case len(notKeptField):
		return strings.EqualFold(name, notKeptField)
	case len(traceField):
		return strings.EqualFold(name, traceField)
	}
	return false
}

// takeOurs takes the fields that are the Middleware's off an answer's header,
// in whatever spelling, and returns the lines of Idempotency-Control.
func takeOurs(h http.Header) (controls []string) {
	for name, lines := range h {
		if isOurs(name) {
			if strings.EqualFold(name, controlField) {
				controls = append(controls, lines...)
			}
			delete(h, name)
		}
	}
	return controls
}
