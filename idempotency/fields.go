package idempotency

import (
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/internal/content"
)

// Response fields that only the Middleware sends or stores.
const (
	replayedField = "Idempotent-Replayed"
	bypassedField = "Idempotency-Bypassed"
	// bypassedForStore is the only value of bypassedField.
	bypassedForStore = "store-unavailable"
	// notKeptField marks a tombstone in the store.
	notKeptField = "Idempotency-Answer-Not-Kept"
	// traceField names the trace of the first run in the store.
	traceField = "Idempotency-Answer-Trace"
	// askedField has the digest of the first request in the store, if only keys are compared.
	askedField = "Idempotency-Answer-Request"
)

var ourFields = []string{controlField, replayedField, bypassedField, notKeptField, traceField, askedField}

// neverStored are the fields that belong to one connection, one moment or one request, and not to
// the answer. In lower case.
var neverStored = setOf([]string{
	// hop by hop, beside those that Connection names; and framing
	"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length",
	"proxy-authenticate", "proxy-authentication-info", "proxy-authorization",
	// the moment
	"date", "age", "server-timing",
	// the credentials of the first client
	"www-authenticate", "authentication-info",
	// the request
	"ratelimit", "x-request-id", "traceparent", "tracestate",
})

// framingFields describe a connection, or how one message is framed, and changingFields one try of a
// request. In lower case.
var (
	framingFields = setOf([]string{
		"connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
	})
	changingFields = setOf([]string{"date", "traceparent", "tracestate"})
)

// KeyFieldFault returns why a request field can be neither a key nor a part of a scope, in words that
// follow the field's name; "" if it can. It cannot if it describes the connection or the message's
// framing, which say nothing of the request, or differs in each try.
func KeyFieldFault(name string) string {
	switch name := folded(name); {
	case framingFields[name]:
		return "describes the connection or the length of one message, and not the request; name another header"
	case changingFields[name]:
		return "differs in every try of a request; name another header"
	}
	return ""
}

// ScopeFieldFault is KeyFieldFault for a part of a scope, which cannot have the header of the key
// either.
func ScopeFieldFault(name string) string {
	switch folded(name) {
	case "idempotency-key", "x-idempotency-key":
		return "is the key, and a scope says whose the key is; name another header"
	case "x-request-id":
		return "differs in every try of a request; name another header"
	}
	return KeyFieldFault(name)
}

// stored returns the fields of a header or trailer that are stored. connection is the answer's
// Connection field.
func (o *Options) stored(h http.Header, connection []string) http.Header {
	stored := make(http.Header, len(h))
	for name, values := range h {
		if o.stores(name) && !hasListToken(connection, name) {
			stored[name] = values
		}
	}
	return stored
}

// stores reports whether answers are stored with the field.
func (o *Options) stores(name string) bool {
	lower := strings.ToLower(name)
	switch {
	case !content.IsToken(name), neverStored[lower], hasListToken(ourFields, name), hasListToken(o.NotStored, name),
		strings.HasPrefix(lower, "ratelimit-"), strings.HasPrefix(lower, "x-ratelimit-"):
		return false
	}
	return lower != "set-cookie" || o.KeepSetCookie
}

// hasListToken reports whether a comma-separated list field has the token, in any case.
func hasListToken(lines []string, token string) bool {
	for _, line := range lines {
		for element := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(element), token) {
				return true
			}
		}
	}
	return false
}

// takeOurs removes the fields that only the Middleware sends from an answer's header, in whatever
// spelling. It returns the lines of Idempotency-Control.
func takeOurs(h http.Header) (controls []string) {
	for name, lines := range h {
		if !hasListToken(ourFields, strings.TrimPrefix(name, http.TrailerPrefix)) {
			continue
		}
		if strings.EqualFold(name, controlField) {
			controls = append(controls, lines...)
		}
		delete(h, name)
	}
	return controls
}
