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

// resumedBody is the body of an answer that can be fetched again: when it breaks off, the
// server is asked for a replay, and the reader gets what it has not seen yet.
type resumedBody struct {
	fetch  func() (*http.Response, error) // a replay of the same answer
	status int
	left   int       // how often it may be fetched again
	seen   hash.Hash // of what the reader got
	n      int64

	mu     sync.Mutex // a body may be closed while it is read
	body   io.ReadCloser
	closed bool
}

// newResumedBody wraps the response's body.
func newResumedBody(r *http.Response, attempts int, fetch func() (*http.Response, error)) *resumedBody {
	return &resumedBody{body: r.Body, fetch: fetch, status: r.StatusCode, left: attempts, seen: sha256.New()}
}

// Read reads from the answer.
func (b *resumedBody) Read(p []byte) (int, error) {
	n, err := b.readSome(p)
	for err != nil && err != io.EOF && n == 0 && b.left > 0 &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		b.left--
		if !b.resume() {
			return 0, err
		}
		n, err = b.readSome(p)
	}
	if n > 0 && err != nil && err != io.EOF {
		return n, nil // the next read meets it again
	}
	return n, err
}

func (b *resumedBody) readSome(p []byte) (int, error) {
	b.mu.Lock()
	body := b.body
	b.mu.Unlock()
	n, err := body.Read(p)
	b.seen.Write(p[:n])
	b.n += int64(n)
	return n, err
}

// Close closes the answer. It is not fetched again after that.
func (b *resumedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.body.Close()
}

// replace makes another body the one that is read and closed. It reports false when the
// reader has no more use for it.
func (b *resumedBody) replace(body io.ReadCloser) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.body.Close()
	b.body = body
	return !b.closed
}

func (b *resumedBody) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// resume replaces the body by that of a replay, behind what was read. It reports false
// when there is none, or another answer.
func (b *resumedBody) resume() bool {
	if b.isClosed() {
		return false
	}
	r, err := b.fetch()
	if err != nil {
		return false
	}
	again := sha256.New()
	if !b.replace(r.Body) || r.StatusCode != b.status || r.Header.Get(replayedField) != "true" {
		_ = r.Body.Close()
		return false
	}
	if _, err := io.CopyN(again, r.Body, b.n); err != nil || !bytes.Equal(again.Sum(nil), b.seen.Sum(nil)) {
		_ = r.Body.Close()
		return false
	}
	return true
}
