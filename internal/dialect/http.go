package dialect

import (
	"io"
	"net/http"
	"strings"
)

// plain is HTTP and nothing else.
type plain struct{}

// Read returns the zero Call.
func (plain) Read(io.ReadSeeker) (Call, error) { return Call{}, nil }

// Forward removes the fields in which a client of gRPC or Connect says how long it waits, because they
// end its waiting and not the run.
func (plain) Forward(h http.Header) http.Header {
	if h.Get("Grpc-Timeout") != "" || h.Get("Connect-Timeout-Ms") != "" {
		h = h.Clone()
		h.Del("Grpc-Timeout")
		h.Del("Connect-Timeout-Ms")
	}
	return h
}

// Listen returns a Listener that needs the whole answer.
func (plain) Listen(int, http.Header, int64) Listener { return plainAnswer{} }

// Replay returns the body as it is.
func (plain) Replay(_ http.Header, body []byte) []byte { return body }

// Refuse returns false.
func (plain) Refuse(http.ResponseWriter, Refusal) bool { return false }

// plainAnswer is an answer that says by its own header what it speaks.
type plainAnswer struct{}

// Write returns true.
func (plainAnswer) Write([]byte) bool { return true }

// End returns the status of gRPC or Connect, or that of HTTP.
func (plainAnswer) End(a Answer) Result {
	status, ok := rpcStatus(&a)
	if !ok {
		status = a.Status
	}
	return Result{Status: status, Cut: a.Cut}
}

// TargetOf returns path and query as sent. The absolute form of a target names the same resource as
// its path and query.
func TargetOf(r *http.Request) string {
	target := r.RequestURI
	if target == "" {
		target = r.URL.RequestURI() // the request came from no server
	}
	_, rest, absolute := strings.Cut(target, "://")
	if strings.HasPrefix(target, "/") || !absolute {
		return target
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0:
		return "/"
	case rest[i] == '?':
		return "/" + rest[i:]
	}
	return rest[i:]
}
