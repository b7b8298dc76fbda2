package serve

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/internal/slow"
)

// problem is a refusal of a whole call (RFC 9457).
type problem struct {
	Type       string        `json:"type"`
	Title      string        `json:"title"`
	Status     int           `json:"status"`
	Detail     string        `json:"detail,omitempty"`
	retryAfter time.Duration // 0: asking again does not help
}

// docs is the page that the problems link to.
const docs = "https://github.com/dibs-go/dibs/blob/main/docs/reference/serve.md#"

// The problems. Each is a section of docs/reference/serve.md.
var (
	problemInvalid      = problem{Type: "invalid", Status: 400, Title: "The call cannot be read"}
	problemUnauthorized = problem{Type: "unauthorized", Status: 401, Title: "The call has no valid credential",
		Detail: "Send Authorization: Bearer TOKEN, with a token of the server's --tokens file."}
	problemForbidden  = problem{Type: "forbidden", Status: 403, Title: "The credential may not do that"}
	problemNotFound   = problem{Type: "not-found", Status: 404, Title: "There is nothing at this path", Detail: "GET /v1/openapi.json describes what there is."}
	problemMethod     = problem{Type: "method-refused", Status: 405, Title: "This path has another method"}
	problemTimeout    = problem{Type: "body-timeout", Status: 408, Title: "The body did not arrive in time"}
	problemTooLarge   = problem{Type: "too-large", Status: 413, Title: "The call is too large"}
	problemMedia      = problem{Type: "media-type-refused", Status: 415, Title: "The body must be application/json"}
	problemOverloaded = problem{Type: "overloaded", Status: 429, Title: "The server has reached a bound", retryAfter: time.Second}
	problemStore      = problem{Type: "store-unavailable", Status: 503, Title: "The store does not answer", retryAfter: time.Second,
		Detail: "What the call asked for may or may not have happened. Ask again with the same tokens, or settle them with undo."}
	problemOverdue = problem{Type: "overdue", Status: 503, Title: "The call took longer than its timeout_ms", retryAfter: time.Second,
		Detail: "What the call asked for may or may not have happened. Ask again with the same tokens, or settle them with undo."}
	problemStopping = problem{Type: leaseapi.Stopping, Status: 503, Title: "The server is stopping", retryAfter: time.Second,
		Detail: "Nothing was done. Ask another server."}
)

// with returns the problem with another detail.
func (p problem) with(detail string) *problem {
	p.Detail = detail
	return &p
}

// refuse answers with a problem.
func refuse(w http.ResponseWriter, r *http.Request, p *problem) {
	exchangeOf(r.Context()).call.Problem = p.Type
	body := *p
	body.Type = docs + p.Type
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // it has only strings
	}
	slow.Answer(w, r, func() {
		h := w.Header()
		h.Set("Content-Type", "application/problem+json")
		h.Set("Cache-Control", "no-store")
		if p.Status == http.StatusUnauthorized {
			h.Set("WWW-Authenticate", `Bearer realm="dibs"`)
		}
		if p.retryAfter > 0 {
			h.Set("Retry-After", strconv.Itoa(int(p.retryAfter.Seconds())))
		}
		w.WriteHeader(p.Status)
		_, _ = w.Write(text)
	})
}
