package retry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"sync"
)

// A resumedBody is the body of an answer that can be fetched again. If it breaks off, it asks the
// server for a replay, and returns what the reader has not read yet.
type resumedBody struct {
	first   *http.Response // which the caller has; its trailer is set at the end
	sending *sending
	cancel  func(error) // ends the context of further tries

	seen   hash.Hash      // of what the reader got
	n      int64          // bytes that the reader got
	replay *http.Response // which is read now; nil for the first answer
	failed error          // why there is no more

	mu     sync.Mutex // a body may be closed while it is read
	body   io.ReadCloser
	closed bool
}

// newResumedBody returns a body for the answer. s sends the request again.
func newResumedBody(s *sending, first *http.Response) *resumedBody {
	b := &resumedBody{first: first, sending: s, seen: sha256.New(), body: first.Body}
	s.ctx, b.cancel = context.WithCancelCause(s.ctx)
	return b
}

// errClosedBody says that the reader has closed the answer.
var errClosedBody = errors.New("the answer was closed")

// Read reads from the answer. Once it has failed, it fails with the same error.
func (b *resumedBody) Read(p []byte) (int, error) {
	if b.failed != nil {
		return 0, b.failed
	}
	for {
		n, err := b.current().Read(p)
		b.seen.Write(p[:n])
		b.n += int64(n)
		switch {
		case err == nil:
			return n, nil
		case err == io.EOF:
			b.failed = b.end()
			b.cancel(nil)
			return n, b.failed
		case n > 0:
			return n, nil // the next read gets the error again
		}
		if b.failed = b.resume(err); b.failed != nil {
			b.cancel(nil)
			return 0, b.failed
		}
	}
}

// Close closes the answer, which is then not fetched again.
func (b *resumedBody) Close() error {
	b.cancel(errClosedBody)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.body.Close()
}

func (b *resumedBody) current() io.ReadCloser {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.body
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

// end returns how the answer has ended: io.EOF, after the trailer of the replay became that of the
// answer, or an error if the replay was longer or shorter than the answer.
func (b *resumedBody) end() error {
	if b.replay == nil {
		return io.EOF
	}
	if length := b.first.ContentLength; length > 0 && length != b.n {
		return fmt.Errorf("retry: the answer of %d bytes broke off, and its replay has %d bytes", length, b.n)
	}
	if trailer := b.replay.Trailer; b.first.Trailer == nil {
		b.first.Trailer = trailer
	} else {
		maps.Copy(b.first.Trailer, trailer) // the caller may have the map
	}
	return io.EOF
}

// resume replaces the body, which broke off, by that of a replay, from the same place on. If it
// cannot, it returns an error that says why and wraps broke.
func (b *resumedBody) resume(broke error) error {
	s := b.sending
	if s.ctx.Err() != nil {
		return broke // by that
	}
	for {
		pause := s.backoff()
		request, err := s.next(pause)
		if err == nil {
			err = s.wait(request, pause)
		}
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if err != nil {
			return b.gaveUp(broke, err.Error())
		}
		response, stopped, err := s.send(request)
		switch {
		case err != nil && s.ctx.Err() != nil:
			return context.Cause(s.ctx)
		case err != nil:
			return fmt.Errorf("%w; the last retry got %w", b.gaveUp(broke, cmp.Or(stopped, errRefused).Error()), err)
		case !b.replace(response.Body):
			return errClosedBody
		}
		other, again := "", false
		if stopped != nil {
			other = fmt.Sprintf("the last retry was answered %d, and %v", response.StatusCode, stopped)
		} else {
			other, again = b.skip(response)
		}
		switch {
		case again:
			continue
		case other == "":
			b.replay = response
			return nil
		}
		_ = response.Body.Close()
		return b.gaveUp(broke, other)
	}
}

// errRefused says that a try failed in a way that a retry does not change.
var errRefused = errors.New("a retry does not change its error")

// gaveUp returns the error of an answer that broke off and cannot be read on.
func (b *resumedBody) gaveUp(broke error, why string) error {
	return fmt.Errorf("retry: the answer broke off after %d bytes, and cannot be read on: %s: %w", b.n, why, broke)
}

// skip reads what the reader got before. other says what makes the response another answer; it is
// empty for the replay. again is true if the response broke off, too.
func (b *resumedBody) skip(r *http.Response) (other string, again bool) {
	switch {
	case r.StatusCode != b.first.StatusCode:
		return fmt.Sprintf("the retry was answered %d, and the first try %d", r.StatusCode, b.first.StatusCode), false
	case r.Header.Get(replayedField) != "true":
		return "the retry got another answer, which is not a replay", false
	}
	for _, name := range []string{"Content-Type", "Content-Encoding"} {
		if r.Header.Get(name) != b.first.Header.Get(name) {
			return "the retry got another answer: its " + name + " differs", false
		}
	}
	if r.ContentLength >= 0 && b.first.ContentLength > 0 && r.ContentLength != b.first.ContentLength {
		return fmt.Sprintf("the retry got another answer: it has %d bytes, and the first had %d", r.ContentLength, b.first.ContentLength), false
	}
	seen := sha256.New()
	switch _, err := io.CopyN(seen, r.Body, b.n); {
	case err == io.EOF:
		return "the retry got another answer, which is shorter", false
	case err != nil:
		return "", true
	case !bytes.Equal(seen.Sum(nil), b.seen.Sum(nil)):
		return fmt.Sprintf("the retry got another answer: its first %d bytes differ", b.n), false
	}
	return "", false
}
