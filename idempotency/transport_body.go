package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net/http"
)

// resumedBody is the body of an answer that can be fetched again: when it breaks off, the
// server is asked for a replay, and the reader gets what it has not seen yet.
type resumedBody struct {
	io.ReadCloser
	fetch  func() (*http.Response, error) // a replay of the same answer
	status int
	left   int       // how often it may be fetched again
	seen   hash.Hash // of what the reader got
	n      int64
}

// newResumedBody wraps the response's body.
func newResumedBody(r *http.Response, attempts int, fetch func() (*http.Response, error)) *resumedBody {
	return &resumedBody{ReadCloser: r.Body, fetch: fetch, status: r.StatusCode, left: attempts, seen: sha256.New()}
}

// Read reads from the answer.
func (b *resumedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.seen.Write(p[:n])
	b.n += int64(n)
	for err != nil && err != io.EOF && n == 0 && b.left > 0 &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.left--
		if !b.resume() {
			return 0, err
		}
		n, err = b.ReadCloser.Read(p)
		b.seen.Write(p[:n])
		b.n += int64(n)
	}
	if n > 0 && err != nil && err != io.EOF {
		return n, nil // the next read meets it again
	}
	return n, err
}

// resume replaces the body by that of a replay, behind what was read. It reports false
// when there is none, or another answer.
func (b *resumedBody) resume() bool {
	r, err := b.fetch()
	if err != nil {
		return false
	}
	again := sha256.New()
	if r.StatusCode != b.status || r.Header.Get(replayedField) != "true" {
		_ = r.Body.Close()
		return false
	}
	if _, err := io.CopyN(again, r.Body, b.n); err != nil || !bytes.Equal(again.Sum(nil), b.seen.Sum(nil)) {
		_ = r.Body.Close()
		return false
	}
	_ = b.ReadCloser.Close()
	b.ReadCloser = r.Body
	return true
}
