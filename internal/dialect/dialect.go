// Package dialect has what requests speak on top of HTTP: gRPC, Connect and the Model Context Protocol
// (MCP). In each of them something else than the method and the URL names a request, and something else
// than the status says what an answer means.
package dialect

import (
	"io"
	"net/http"
	"strings"
	"time"
)

// A Dialect is what one request speaks. The request has it from its beginning to its end.
type Dialect interface {
	// Read says what the request asks for. body is nil until it has been received: if it is needed, the
	// kind is Unread then. Read returns ErrCall, or another error if the body is not a message.
	Read(body io.ReadSeeker) (Call, error)
	// Forward returns the header with which the handler gets the request. It does not change h.
	Forward(h http.Header) http.Header
	// Listen returns what reads an answer that begins with the status and the header. limit is how
	// many bytes of the answer are stored.
	Listen(status int, h http.Header, limit int64) Listener
	// Replay makes a stored answer one to the request. It changes the header, and returns the body.
	Replay(h http.Header, body []byte) []byte
	// Refuse answers with a refusal whose header has what does not depend on the dialect. It returns
	// false, and does nothing, if the dialect has no errors of its own.
	Refuse(w http.ResponseWriter, r Refusal) bool
}

// A Kind is what happens to a request.
type Kind uint8

// The kinds of requests.
const (
	Guarded      Kind = iota // runs under its key, if it has one
	Unread                   // the body says it
	Unguarded                // passes
	Listing                  // passes, and its answer is read
	Cancellation             // would end a guarded call that runs, and is accepted
	SessionEnd               // would end the session of such a call, and is refused
)

// A Call is what a request asks for.
type Call struct {
	Kind  Kind
	Name  []byte    // what names it beside its key; nil: host and path, as its guard says
	Asked *[32]byte // its fingerprint; nil: that of its target, its header and its body
	// Key is the key of a call that has none, and Retention is how long its answer is kept then.
	Key       string
	Retention time.Duration
	Keyless   bool                // it cannot have a key
	Begin     func() (end func()) // makes known that the call runs under its key; nil: no other request ends it
}

// A Listener reads one answer.
type Listener interface {
	// Write takes the next part of an answer that streams. It reports whether End needs the part again.
	Write(p []byte) bool
	// End takes the answer at its end, and says what it means.
	End(a Answer) Result
}

// An Answer is what a handler has answered.
type Answer struct {
	Status          int
	Header, Trailer http.Header
	Body            []byte // without what Write reported false for
	Streamed        bool   // the body was given to Write
	Cut             bool   // the body is only a beginning
}

// A Result is what an answer means.
type Result struct {
	Status int    // of HTTP, that stands for it
	None   bool   // it has no outcome, although it has ended
	Cut    bool   // it is too long to be stored
	Body   []byte // what is stored, as JSON; nil: the whole answer
}

// A Refusal is an answer to a request that does not run.
type Refusal struct {
	Status     int
	Code       string // Connect's; "": by the status
	Text       string
	RetryAfter time.Duration
}

// protocol is what a message speaks by its header. gRPC and Connect have statuses of their own: an HTTP
// status of 200 says nothing.
type protocol uint8

const (
	plainHTTP     protocol = iota
	grpc                   // application/grpc: the status is in the trailer
	grpcWeb                // application/grpc-web: the trailer is the last frame of the body
	connectUnary           // an HTTP status, and an error in JSON
	connectStream          // application/connect+…: the error is in the last frame of the body
)

// protocolOf returns the protocol by the Content-Type. A header with several of them has none, because
// each of its readers would choose another line.
func protocolOf(h http.Header) protocol {
	if len(h["Content-Type"]) > 1 {
		return plainHTTP
	}
	media, _, _ := strings.Cut(strings.ToLower(h.Get("Content-Type")), ";")
	media = strings.TrimSpace(media)
	switch {
	case strings.HasPrefix(media, "application/grpc-web"):
		return grpcWeb
	case media == "application/grpc", strings.HasPrefix(media, "application/grpc+"):
		return grpc
	case strings.HasPrefix(media, "application/connect+"):
		return connectStream
	case len(h["Connect-Protocol-Version"]) > 0:
		return connectUnary
	}
	return plainHTTP
}

// Of returns the dialect of a request with that header.
func Of(h http.Header) Dialect {
	switch protocolOf(h) {
	case grpc, grpcWeb:
		return grpcRequest{contentType: h.Get("Content-Type")}
	case connectUnary:
		return connectRequest{}
	case connectStream:
		return connectRequest{stream: true, contentType: h.Get("Content-Type")}
	}
	return plain{}
}

// MayStream reports whether a request with that header may go on after its first message.
func MayStream(h http.Header) bool {
	p := protocolOf(h)
	return p == grpc || p == grpcWeb || p == connectStream
}
