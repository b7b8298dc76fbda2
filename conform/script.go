package conform

import (
	"net/http"
	"sync"
)

// Script is what the origin answers to the requests of one case.
type Script struct {
	// Answers to the first request that reaches it, the second and so on; the last one
	// is given to all that follow.
	Answers []Answer `json:"answers"`
}

// Answer is one answer of the origin. In Body and in the values of Header and Trailer
// {run} stands for the number of the request within its case, from 1, and {key} for its
// Idempotency-Key, as the origin got it.
type Answer struct {
	// Status of the answer. Default: 201.
	Status int `json:"status,omitempty"`
	// Header has the fields, in order; one with no value at all is left out on purpose:
	// a Content-Type that nobody should guess.
	Header []Field `json:"header,omitempty"`
	// Early are informational answers that come first.
	Early []Early `json:"early,omitempty"`
	// Body, or if Size is not 0 so many bytes of a pattern (see Pattern), MaxPattern at most.
	Body []byte `json:"body,omitempty"`
	Size int    `json:"size,omitempty"`
	// Trailer has the fields that follow the body.
	Trailer []Field `json:"trailer,omitempty"`

	// Hold makes the request wait, before anything is answered, until it is let go on.
	Hold bool `json:"hold,omitempty"`
	// Pieces follow the Body, one by one: each is flushed, and waits to be let go on
	// first.
	Pieces []string `json:"pieces,omitempty"`
	// Chunked leaves the length out.
	Chunked bool `json:"chunked,omitempty"`
	// Break ends the connection, if it is not NoBreak.
	Break Break `json:"break,omitempty"`
	// Raw is written to the connection as it is, in place of all of the above, and the
	// connection ends; with Linger it stays open. Only by an origin that listens itself.
	Raw    []byte `json:"raw,omitempty"`
	Linger bool   `json:"linger,omitempty"`
	// Upgrade answers a request for another protocol with 101, and from then on sends back
	// what it gets; HTTP/2 is taken up only by an origin that listens itself, because who
	// has one behind a middleware has a server before it to do so.
	Upgrade string `json:"upgrade,omitempty"`
}

// Break says where an answer ends that is not whole.
type Break string

// Where an answer breaks off.
const (
	NoBreak Break = ""
	// BreakBefore hangs up without an answer.
	BreakBefore Break = "before"
	// BreakWithin hangs up after the Body, with more announced than was sent.
	BreakWithin Break = "within"
)

// Field is one line of a header or a trailer.
type Field struct {
	Name  string  `json:"name"`
	Value *string `json:"value"` // nil: left out on purpose
}

// Early is an informational answer.
type Early struct {
	Status int     `json:"status"`
	Header []Field `json:"header,omitempty"`
}

// Seen is a request that reached the origin.
type Seen struct {
	Run     int         `json:"run"` // its number within the case, from 1
	Method  string      `json:"method"`
	Target  string      `json:"target"` // as it was on the request line
	Host    string      `json:"host"`
	Header  http.Header `json:"header"`
	Body    []byte      `json:"body,omitempty"`
	Trailer http.Header `json:"trailer,omitempty"`
	Broken  bool        `json:"broken,omitempty"` // its body was not whole
}

// MaxPattern is the longest Pattern.
const MaxPattern = 16 << 20

// Pattern returns n bytes, at most MaxPattern, in which no part is like another for long.
// They are not to be modified.
func Pattern(n int) []byte { return pattern()[:n:n] }

var pattern = sync.OnceValue(func() []byte {
	b := make([]byte, MaxPattern)
	x := uint32(2463534242)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
})

// field returns one line.
func field(name, value string) Field { return Field{Name: name, Value: &value} }
