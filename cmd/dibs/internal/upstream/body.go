package upstream

import (
	"bytes"
	"io"
	"net/http"
	"sync"

	"github.com/dibs-go/dibs"
)

// lastingBody is a request's body for several attempts. net/http closes the body of a failed
// request, but a body that was not read can be sent by the next attempt. nil is not a body.
type lastingBody struct {
	data  []byte                        // the whole body, if it was read in advance
	again func() (io.ReadCloser, error) // the request's GetBody

	mu       sync.Mutex
	body     io.ReadCloser
	read     bool // a part was read
	closed   bool // by net/http
	released bool // no other attempt follows
}

// inAdvance bounds the bodies that are read before they are sent.
const inAdvance = 32 << 10

// newLastingBody returns the request's body. A short body of a guarded request is read at
// once, because the guard has it in memory and net/http then writes header and body in one
// packet. The error is that of reading it.
func newLastingBody(req *http.Request) (*lastingBody, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	b := &lastingBody{body: req.Body, again: req.GetBody}
	if _, guarded := dibs.FromContext(req.Context()); guarded && 0 < req.ContentLength && req.ContentLength <= inAdvance {
		b.data = make([]byte, req.ContentLength)
		if _, err := io.ReadFull(b.body, b.data); err != nil {
			b.body.Close()
			return nil, err
		}
	}
	return b, nil
}

// reader returns the body for an attempt.
func (b *lastingBody) reader() io.ReadCloser {
	if b.data != nil {
		return io.NopCloser(bytes.NewReader(b.data)) // net/http knows that this is in memory
	}
	return b
}

// Read reads from the body.
func (b *lastingBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.read = true
	body := b.body
	b.mu.Unlock()
	return body.Read(p)
}

// Close closes the body if no other attempt follows.
func (b *lastingBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.released {
		return b.body.Close()
	}
	return nil
}

// rewind prepares the body for another attempt, and reports whether it can be sent again.
func (b *lastingBody) rewind() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = false
	if !b.read || b.data != nil {
		return true
	}
	if b.again == nil {
		return false
	}
	body, err := b.again()
	if err != nil {
		return false
	}
	b.body.Close()
	b.body, b.read = body, false
	return true
}

// release says that no other attempt follows.
func (b *lastingBody) release() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	if b.closed || b.data != nil {
		b.body.Close()
	}
}
