package idempotency

import (
	"net/http"
)

// ContentType is the media type of a stored answer before it is deflated.
const ContentType = "application/http"

// Answer is a stored answer. In the store it is an HTTP/1.1 response message,
// deflated (RFC 1951).
type Answer struct {
	Status  int
	Header  http.Header
	Body    []byte
	Trailer http.Header
	// NotKept says that this is a tombstone: the request was served, but its
	// answer was too long to be kept. Of the rest, only Status counts.
	NotKept bool
}
