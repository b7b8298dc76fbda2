package idempotency

import (
	"net/http"
	"slices"
	"strings"
)

// overrideFields are the fields in which a client names another method than the request's. Many
// frameworks read them.
var overrideFields = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// overrideParameter is a parameter of the query in which some frameworks look for the method.
const overrideParameter = "_method"

// OverrideFields returns the request fields by which frameworks let a client override the method,
// in canonical form. A request whose method, or one of these fields, is a guarded method is guarded.
// So is one with such a method in the parameter _method of its query.
func OverrideFields() []string { return slices.Clone(overrideFields) }

// isOverride reports whether a field with that folded name overrides the method.
func isOverride(name string) bool { return overrides[name] }

var overrides = func() map[string]bool {
	all := make(map[string]bool)
	for _, name := range overrideFields {
		all[folded(name)] = true
	}
	return all
}()

// overridesOf returns what a request names as its method in place of its own, in capitals.
func overridesOf(r *http.Request) (methods []string) {
	for name, lines := range r.Header {
		if isOverride(folded(name)) {
			for _, line := range lines {
				methods = append(methods, strings.ToUpper(strings.TrimSpace(line)))
			}
		}
	}
	if strings.Contains(r.URL.RawQuery, "method") { // percent-encoded, it is still read
		for _, value := range r.URL.Query()[overrideParameter] {
			methods = append(methods, strings.ToUpper(strings.TrimSpace(value)))
		}
	}
	return methods
}

// carriesMessage reports whether a request to an endpoint of MCP carries a message: only a POST does, or
// what a server takes for one.
func carriesMessage(r *http.Request) bool {
	return r.Method == http.MethodPost || slices.Contains(overridesOf(r), http.MethodPost)
}

// guardsAny reports whether the request's method, or one that overrides it, is guarded.
func (m *Middleware) guardsAny(r *http.Request) bool {
	return m.guards(r.Method) || slices.ContainsFunc(overridesOf(r), m.guards)
}
