package conform

import (
	"net/http"
	"sync"
)

// originAnswer is one answer of the origin. In Body and in the values of Header and Trailer, {run} is
// the number of the request within its case, from 1, and {key} is its Idempotency-Key.
type originAnswer struct {
	// Status of the answer. Default: 201.
	Status int
	// Header are the fields, in order. A field without a value is left out, also a Content-Type
	// that a library would guess.
	Header []fieldLine
	// Early are informational answers that come first.
	Early []earlyAnswer
	// Body is the content. If Size is not 0, the content is Size bytes of pattern, at most
	// maxPattern.
	Body []byte
	Size int
	// Trailer has the fields that follow the body.
	Trailer []fieldLine

	// Hold makes the request wait for open before it is answered.
	Hold bool
	// Pieces follow the Body. Each is flushed, and waits for open.
	Pieces []string
	// Chunked leaves Content-Length out.
	Chunked bool
	// Break ends the connection before the answer is whole.
	Break breakPoint
	// Raw is written to the connection instead of all of the above, and the connection ends.
	// With Linger it stays open. An origin without an address of its own ignores it.
	Raw    []byte
	Linger bool
	// Upgrade answers a request for another protocol with 101, and then echoes what comes. An
	// origin without an address of its own ignores h2c, because the server in front of it
	// handles that.
	Upgrade string
}

// breakPoint says where an answer ends that is not whole.
type breakPoint string

// Where an answer breaks off.
const (
	// breakBefore closes the connection without an answer.
	breakBefore breakPoint = "before"
	// breakWithin closes the connection after the Body, with a longer Content-Length.
	breakWithin breakPoint = "within"
)

// fieldLine is one line of a header or a trailer.
type fieldLine struct {
	Name  string
	Value *string // nil: left out on purpose
}

// earlyAnswer is an informational answer.
type earlyAnswer struct {
	Status int
	Header []fieldLine
}

// seenRequest is a request that reached the origin.
type seenRequest struct {
	Run     int // its number within the case, from 1
	Method  string
	Target  string // as it was on the request line
	Host    string
	Header  http.Header
	Body    []byte
	Trailer http.Header
	Broken  bool // its body was not whole
}

// maxPattern is the longest pattern.
const maxPattern = 16 << 20

// pattern returns n bytes without repetition, at most maxPattern. The caller must not change
// them.
func pattern(n int) []byte { return patternBytes()[:n:n] }

var patternBytes = sync.OnceValue(func() []byte {
	b := make([]byte, maxPattern)
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
func field(name, value string) fieldLine { return fieldLine{Name: name, Value: &value} }
