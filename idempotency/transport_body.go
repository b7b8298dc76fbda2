package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net/http"
	"sync"
)

// A resumedBody is the body of an answer that can be fetched again. If it breaks off, it asks the
// server for a replay, and returns what the reader has not read yet.
type resumedBody struct {
	fetch  func() *http.Response // a replay of the same answer; nil for none
	status int
	left   int       // how often it may be fetched again
	seen   hash.Hash // of what the reader got
	n      int64     // bytes that the reader got

	mu     sync.Mutex // a body may be closed while it is read
	body   io.ReadCloser
	closed bool
}

// Read reads from the answer.
func (b *resumedBody) Read(p []byte) (int, error) {
	for {
		b.mu.Lock()
		body := b.body
		b.mu.Unlock()
		n, err := body.Read(p)
		b.seen.Write(p[:n])
		b.n += int64(n)
		switch {
		case err == nil || err == io.EOF || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
			return n, err
		case n > 0:
			return n, nil // the next read gets the error again
		case b.left == 0:
			return 0, err
		}
		if b.left--; !b.resume() {
			return 0, err
		}
	}
}

// Close closes the answer, which is then not fetched again.
func (b *resumedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.body.Close()
}

// replace makes another body the one that is read. It reports false if the reader has closed the
// answer.
func (b *resumedBody) replace(body io.ReadCloser) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = body.Close()
		return false
	}
	_ = b.body.Close()
	b.body = body
	return true
}

// resume replaces the body by that of a replay, from where it broke off. It reports false if there
// is no replay, or it is another answer.
func (b *resumedBody) resume() bool {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return false
	}
	r := b.fetch()
	if r == nil || !b.replace(r.Body) {
		return false
	}
	again := sha256.New()
	_, err := io.CopyN(again, r.Body, b.n)
	if err != nil || r.StatusCode != b.status || r.Header.Get(replayedField) != "true" || !bytes.Equal(again.Sum(nil), b.seen.Sum(nil)) {
		_ = r.Body.Close()
		return false
	}
	return true
}
