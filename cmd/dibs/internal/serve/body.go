package serve

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"
)

// limits are how long clients and the store may take.
type limits struct {
	silence time.Duration // the longest pause of a client that sends a body or reads an answer
	body    time.Duration // a whole body
	next    time.Duration // the store, until the next key of a list
}

var defaultLimits = limits{silence: 30 * time.Second, body: time.Minute, next: 30 * time.Second}

const (
	// growth is how much memory a body of unknown length takes at a time.
	growth = 64 << 10
	// bodyMemory is how many bytes of memory a byte of a body takes, as it arrived and as it is
	// read.
	bodyMemory = 3
	// elementMemory is about how many bytes an element takes, and what is remembered of it while
	// it waits.
	elementMemory = 2 << 10
	// dataMemory is how many bytes a byte of a record takes, as it came and as it is written.
	dataMemory = 5
)

// body reads the body of a call. Its memory is the server's until free is called.
func (s *Server) body(w http.ResponseWriter, r *http.Request) (body []byte, free func(), p *problem) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, nil, &problemMedia
	}
	if r.Header.Get("Content-Encoding") != "" {
		return nil, nil, problemMedia.with("It must not be compressed.")
	}
	most := s.config.MaxBody
	tooLarge := problemTooLarge.with(fmt.Sprintf("The body is longer than %d bytes, the server's --max-body.", most))
	if r.ContentLength > most {
		return nil, nil, tooLarge
	}
	var taken int64
	release := func() { s.memory.give(taken) }
	defer func() {
		if p != nil {
			release()
		}
	}()
	grow := func(n int64) *problem {
		if !s.memory.take(bodyMemory * n) {
			return problemOverloaded.with("The bodies of all calls take as much memory as --max-body-memory.")
		}
		taken += bodyMemory * n
		return nil
	}
	size := r.ContentLength
	if size < 0 {
		size = growth
	}
	if p := grow(size); p != nil {
		return nil, nil, p
	}
	rc := http.NewResponseController(w)
	end := time.Now().Add(s.limits.body)
	body = make([]byte, 0, size+1)
	for {
		if len(body) == cap(body) {
			if int64(len(body)) > most {
				return nil, nil, tooLarge
			}
			if p := grow(int64(len(body))); p != nil {
				return nil, nil, p
			}
			body = append(make([]byte, 0, 2*len(body)), body...)
		}
		_ = rc.SetReadDeadline(earlier(time.Now().Add(s.limits.silence), end))
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case err == io.EOF && int64(len(body)) > most:
			return nil, nil, tooLarge
		case err == io.EOF:
			_ = rc.SetReadDeadline(time.Time{})
			s.memory.give(taken - bodyMemory*int64(len(body)))
			taken = bodyMemory * int64(len(body))
			return body, release, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, nil, &problemTimeout
		case err != nil:
			return nil, nil, problemInvalid.with("The body ended early.")
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// answer sends a JSON text. A client that does not read it is given up.
func (s *Server) answer(w http.ResponseWriter, text []byte) {
	rc := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	for len(text) > 0 {
		n := min(len(text), growth)
		_ = rc.SetWriteDeadline(time.Now().Add(s.limits.silence))
		if _, err := w.Write(text[:n]); err != nil {
			return
		}
		text = text[n:]
	}
	_ = rc.SetWriteDeadline(time.Now().Add(s.limits.silence))
	_ = rc.Flush()
	_ = rc.SetWriteDeadline(time.Time{})
}
