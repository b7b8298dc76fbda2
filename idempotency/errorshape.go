package idempotency

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/dialect"
)

// A ProblemWriter answers a request with a problem, as WriteProblem does, in the shape of an API's
// errors. Section p.Name of DocsURL describes the problem.
type ProblemWriter func(w http.ResponseWriter, r *http.Request, p Problem)

// WriteProblem answers a request with a problem document (RFC 9457). A request of gRPC or Connect is
// answered in that protocol. Section p.Name of DocsURL describes the problem. A p.Status that is not 300 to 599 is sent as 500.
func WriteProblem(w http.ResponseWriter, r *http.Request, p Problem) {
	writeShape(w, r, p, "application/problem+json", func(p Problem, link string) any { return p.document(link) })
}

// document returns the problem document.
func (p Problem) document(link string) any {
	return struct {
		Type     string `json:"type"`
		Title    string `json:"title"`
		Status   int    `json:"status"`
		Detail   string `json:"detail,omitempty"`
		Instance string `json:"instance,omitempty"`
	}{link, p.Title, p.Status, p.Detail, p.Instance}
}

// WriteJSONRPCError is a ProblemWriter of an error of JSON-RPC (https://www.jsonrpc.org/specification).
// With Options.MCP its id is the request's, or null if that has none or was not read. Its code is the
// status, because that is outside of what JSON-RPC reserves. Its data is the problem document. With
// Options.MCP its message says to a model what to do next.
func WriteJSONRPCError(w http.ResponseWriter, r *http.Request, p Problem) {
	writeShape(w, r, p, "application/json", func(p Problem, link string) any {
		id := json.RawMessage("null")
		if asked := dialect.ID(r.Context()); asked != nil {
			id = asked
		}
		text := p.text()
		if dialect.IsMCP(r.Context()) {
			text = p.mcpText()
		}
		return map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": p.Status, "message": text, "data": p.document(link)}}
	})
}

// WriteStripeError is a ProblemWriter of Stripe's error object (https://docs.stripe.com/api/errors):
// an idempotency_error for another request under the same key, an api_error for a failure of the
// server, and an invalid_request_error otherwise. A duplicate of a running request has Stripe's code
// idempotency_key_in_use (https://docs.stripe.com/error-codes). The code of others is Problem.Name
// with underscores; it is not Stripe's, which documents no code for an idempotency_error.
func WriteStripeError(w http.ResponseWriter, r *http.Request, p Problem) {
	writeShape(w, r, p, "application/json", func(p Problem, link string) any {
		kind := "invalid_request_error"
		switch {
		case p.Name == problemMismatch.Name:
			kind = "idempotency_error"
		case p.Status >= 500:
			kind = "api_error"
		}
		return map[string]any{"error": struct {
			Type    string `json:"type"`
			Code    string `json:"code"`
			Message string `json:"message"`
			DocURL  string `json:"doc_url"`
		}{kind, p.snakeCode(map[string]string{problemInProgress.Name: "idempotency_key_in_use"}), p.text(), link}}
	})
}

// acpCodes are the codes of section 6.4.
var acpCodes = map[string]string{
	problemKeyRequired.Name: "idempotency_key_required",
	problemMismatch.Name:    "idempotency_conflict",
	problemInProgress.Name:  "idempotency_in_flight",
}

// WriteACPError is a ProblemWriter of the flat error of the Agentic Commerce Protocol
// (https://github.com/agentic-commerce-protocol/agentic-commerce-protocol/blob/main/rfcs/rfc.agentic_checkout.md,
// sections 3.1 and 6.4), with its codes for keys. The code of others is Problem.Name with underscores.
// The answer repeats the request's Idempotency-Key.
func WriteACPError(w http.ResponseWriter, r *http.Request, p Problem) {
	if keys := r.Header[content.KeyField]; len(keys) == 1 {
		w.Header()[content.KeyField] = keys
	}
	writeShape(w, r, p, "application/json", func(p Problem, _ string) any {
		kind := "invalid_request"
		switch {
		case p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests && p.Name != problemInProgress.Name:
			kind = "service_unavailable"
		case p.Status >= 500:
			kind = "processing_error"
		}
		return struct {
			Type    string `json:"type"`
			Code    string `json:"code"`
			Message string `json:"message"`
		}{kind, p.snakeCode(acpCodes), p.text()}
	})
}

// WriteUCPError is a ProblemWriter of the protocol errors of the Universal Commerce Protocol over REST
// (https://github.com/Universal-Commerce-Protocol/ucp/blob/main/docs/specification/checkout-rest.md,
// "Error Responses"): code and content. The code is Problem.Name with underscores; the protocol
// documents none for keys.
func WriteUCPError(w http.ResponseWriter, r *http.Request, p Problem) {
	writeShape(w, r, p, "application/json", func(p Problem, _ string) any {
		return struct {
			Code    string `json:"code"`
			Content string `json:"content"`
		}{p.snakeCode(nil), p.text()}
	})
}

// WriteJSONAPIError is a ProblemWriter of an error object of JSON:API
// (https://jsonapi.org/format/#error-objects). Its id is Problem.Instance, and its code Problem.Name.
func WriteJSONAPIError(w http.ResponseWriter, r *http.Request, p Problem) {
	writeShape(w, r, p, "application/vnd.api+json", func(p Problem, link string) any {
		return map[string]any{"errors": []any{struct {
			ID     string            `json:"id,omitempty"`
			Links  map[string]string `json:"links"`
			Status string            `json:"status"`
			Code   string            `json:"code"`
			Title  string            `json:"title"`
			Detail string            `json:"detail,omitempty"`
		}{p.Instance, map[string]string{"about": link}, strconv.Itoa(p.Status), p.Name, p.Title, p.Detail}}}
	})
}

// writeShape answers with what body makes of a problem and of the link to its description.
func writeShape(w http.ResponseWriter, r *http.Request, p Problem, contentType string, body func(p Problem, link string) any) {
	if p.Status < 300 || p.Status > 599 {
		p.Status = http.StatusInternalServerError
	}
	link, h := DocsURL+"#"+p.Name, w.Header()
	clearContent(h)
	if p.RetryAfter > 0 {
		h.Set("Retry-After", retryAfterOf(p))
	}
	refusal := dialect.Refusal{Status: p.Status, Code: p.code, Text: p.Title + " (" + link + ")", RetryAfter: p.RetryAfter}
	if dialect.Of(r.Header).Refuse(w, refusal) {
		return
	}
	text, _ := json.Marshal(body(p, link)) // which cannot fail
	text = append(text, '\n')
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(text) // the client may have gone away
}

// snakeCode returns the API's code of the problem, or the problem's name with underscores.
func (p Problem) snakeCode(codes map[string]string) string {
	return cmp.Or(codes[p.Name], strings.ReplaceAll(p.Name, "-", "_"))
}

// text returns all that people read, for a shape that has one field for it.
func (p Problem) text() string {
	text := p.Title
	if p.Detail != "" {
		text += ". " + p.Detail
	}
	if p.Instance != "" {
		text += " (" + p.Instance + ")"
	}
	return text
}
