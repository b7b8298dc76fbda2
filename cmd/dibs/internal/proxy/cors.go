package proxy

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// Fields of the CORS protocol (Fetch standard, section 3.2).
const (
	originField         = "Origin"
	requestMethodField  = "Access-Control-Request-Method"
	requestHeadersField = "Access-Control-Request-Headers"
	allowOriginField    = "Access-Control-Allow-Origin"
	allowHeadersField   = "Access-Control-Allow-Headers"
	credentialsField    = "Access-Control-Allow-Credentials"
	exposeField         = "Access-Control-Expose-Headers"
)

// cors lets pages in browsers use keys. The origin decides which pages are allowed. The proxy
// adds its own fields, and lets the pages of its list read its refusals.
type cors struct {
	next  http.Handler
	pages []string
}

// answeredKey is the key of the context's value that says whether the origin has answered.
type answeredKey struct{}

// originAnswered records whether the answer to the request is the origin's.
func originAnswered(ctx context.Context, is bool) {
	if answered, ok := ctx.Value(answeredKey{}).(*atomic.Bool); ok {
		answered.Store(is)
	}
}

func (c *cors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pages := r.Header[originField]
	if len(pages) != 1 {
		c.next.ServeHTTP(w, r)
		return
	}
	answered := new(atomic.Bool)
	r = r.WithContext(context.WithValue(r.Context(), answeredKey{}, answered))
	cw := &corsWriter{ResponseWriter: w, cors: c, page: pages[0], answered: answered}
	if r.Method == http.MethodOptions && len(r.Header[requestMethodField]) > 0 {
		// The origin is not asked about the key's fields, because some refuse a preflight with
		// an unknown field.
		var rest []string
		for _, name := range listOf(r.Header[requestHeadersField]) {
			if isKeyField(name) {
				cw.asked = append(cw.asked, name)
			} else {
				rest = append(rest, name)
			}
		}
		if len(cw.asked) > 0 {
			r.Header = r.Header.Clone()
			delete(r.Header, requestHeadersField)
			if len(rest) > 0 {
				r.Header.Set(requestHeadersField, strings.Join(rest, ","))
			}
		}
	}
	c.next.ServeHTTP(cw, r)
}

// isKeyField reports whether a field carries a key.
func isKeyField(name string) bool {
	return strings.EqualFold(name, "Idempotency-Key") || strings.EqualFold(name, "X-Idempotency-Key")
}

// listOf returns the elements of a list field.
func listOf(lines []string) (elements []string) {
	for _, line := range lines {
		for element := range strings.SplitSeq(line, ",") {
			if element = strings.TrimSpace(element); element != "" {
				elements = append(elements, element)
			}
		}
	}
	return elements
}

// corsWriter completes the CORS fields of an answer.
type corsWriter struct {
	http.ResponseWriter
	cors     *cors
	page     string
	asked    []string // the key's fields in a preflight
	answered *atomic.Bool
	begun    bool
}

// WriteHeader completes the header of the final answer.
func (w *corsWriter) WriteHeader(status int) {
	if status >= 200 && !w.begun {
		w.begun = true
		w.complete()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the body.
func (w *corsWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *corsWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *corsWriter) complete() {
	h := w.Header()
	said := h.Get(allowOriginField)
	allows := said == "*" || said == w.page
	switch {
	case w.answered.Load() && !allows:
		return // the origin does not allow this page
	case !allows:
		// A replay is not for this page, because the origin allowed another page to read it.
		if !slices.Contains(w.cors.pages, w.page) || h.Get(replayedHeader) != "" {
			return
		}
		h.Set(allowOriginField, w.page)
		h.Set(credentialsField, "true")
		h.Add("Vary", originField)
	}
	if len(w.asked) > 0 {
		h.Set(allowHeadersField, strings.Join(append(listOf(h[allowHeadersField]), w.asked...), ", "))
		return
	}
	exposed := listOf(h[exposeField])
	for _, name := range []string{replayedHeader, "Retry-After"} {
		if !slices.ContainsFunc(exposed, func(e string) bool { return strings.EqualFold(e, name) }) {
			exposed = append(exposed, name)
		}
	}
	h.Set(exposeField, strings.Join(exposed, ", "))
}
