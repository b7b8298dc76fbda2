package upstream

import (
	"io"
	"net/http"
	"sync"
)

// lastingBody is a request's body that outlives an attempt to send it: a
// transport closes the body of a request that failed, but one of which nothing
// was read can be sent all the same. A nil one is no body.
type lastingBody struct {
	again func() (io.ReadCloser, error) // the request's GetBody

	mu       sync.Mutex
	body     io.ReadCloser
	read     bool // something was read
	closed   bool // the transport has no more use for it
	released bool // nor has anybody else
}

func newLastingBody(req *http.Request) *lastingBody {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	return &lastingBody{body: req.Body, again: req.GetBody}
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
	if !b.read {
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
	if b.closed {
		b.body.Close()
	}
}
