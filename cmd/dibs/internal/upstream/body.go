package upstream

import (
	"bytes"
	"io"
	"net/http"
	"sync"

	"github.com/dibs-go/dibs"
)

// lastingBody is a request's body that outlives an attempt to send it: a
// transport closes the body of a request that failed, but one of which nothing
// was read can be sent all the same. A nil one is no body.
type lastingBody struct {
	data  []byte                        // all of it, if it was read in advance
	again func() (io.ReadCloser, error) // the request's GetBody

	mu       sync.Mutex
	body     io.ReadCloser
	read     bool // something was read
	closed   bool // the transport has no more use for it
	released bool // nor has anybody else
}

// inAdvance is how long a body may be to be read before it is sent.
const inAdvance = 32 << 10

// newLastingBody takes over the request's body. That of a guarded request is
// there already; if it is short, it is read at once: net/http then writes header
// and body together, which halves the packets and system calls on both sides.
// It returns an error when it cannot be read.
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

// reader returns what an attempt sends.
func (b *lastingBody) reader() io.ReadCloser {
	if b.data != nil {
		return io.NopCloser(bytes.NewReader(b.data)) // a kind that net/http knows to be in memory
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

// Close closes the body if no other attempt will be made with it.
func (b *lastingBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.released {
		return b.body.Close()
	}
	return nil
}

// rewind makes the body ready for another attempt, if that can be done.
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

// release says that there will be no other attempt.
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
