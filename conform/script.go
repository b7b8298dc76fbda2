package conform

import (
	"net/http"
	"sync"
)

// Answer is one answer of the origin. In Body and in the values of Header and Trailer, {run} is
// the number of the request within its case, from 1, and {key} is its Idempotency-Key.
type Answer struct {
	// Status of the answer. Default: 201.
	Status int
	// Header are the fields, in order. A field without a value is left out, also a Content-Type
	// that a library would guess.
	Header []Field
	// Early are informational answers that come first.
	Early []Early
	// Body is the content. If Size is not 0, the content is so many bytes of Pattern, at most
	// MaxPattern.
	Body []byte
	Size int
	// Trailer has the fields that follow the body.
	Trailer []Field

	// Hold makes the request wait for open before it is answered.
	Hold bool
	// Pieces follow the Body. Each is flushed, and waits for open.
	Pieces []string
	// Chunked leaves Content-Length out.
	Chunked bool
	// Break ends the connection before the answer is whole.
	Break Break
	// Raw is written to the connection instead of all of the above, and the connection ends.
	// With Linger it stays open. An origin without an address of its own ignores it.
	Raw    []byte
	Linger bool
	// Upgrade answers a request for another protocol with 101, and then echoes what comes. An
	// origin without an address of its own ignores h2c, because the server in front of it
	// handles that.
	Upgrade string
}

// Break says where an answer ends that is not whole.
type Break string

// Where an answer breaks off.
const (
	NoBreak Break = ""
	// BreakBefore closes the connection without an answer.
	BreakBefore Break = "before"
	// BreakWithin closes the connection after the Body, with a longer Content-Length.
	BreakWithin Break = "within"
)

// Field is one line of a header or a trailer.
type Field struct {
	Name  string
	Value *string // nil: left out on purpose
}

// Early is an informational answer.
type Early struct {
	Status int
	Header []Field
}

// Seen is a request that reached the origin.
type Seen struct {
	Run     int // its number within the case, from 1
	Method  string
	Target  string // as it was on the request line
	Host    string
	Header  http.Header
	Body    []byte
	Trailer http.Header
	Broken  bool // its body was not whole
}

// MaxPattern is the longest Pattern.
const MaxPattern = 16 << 20

// Pattern returns n bytes without repetition, at most MaxPattern. The caller must not change
// them.
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
