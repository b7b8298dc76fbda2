package serve

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/internal/slow"
)

// limits are how long clients and the store may take.
type limits struct {
	silence time.Duration // the longest pause of a client that sends a body or reads an answer
	rate    int64         // how many bytes a second a body must have
	next    time.Duration // the store, until the next key of a list
}

var defaultLimits = limits{silence: 30 * time.Second, rate: 64 << 10, next: 30 * time.Second}

// body reads the body of a call. What has arrived of it counts for the call's memory.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, &problemMedia
	}
	if r.Header.Get("Content-Encoding") != "" {
		return nil, problemMedia.with("It must not be compressed.")
	}
	most := s.config.MaxBody
	tooLarge := func() *problem {
		return problemTooLarge.with("The body is longer than " + quantity.SizeText(most) + ", the server's --max-body.")
	}
	if r.ContentLength > most {
		return nil, tooLarge()
	}
	size := r.ContentLength
	if size < 0 || size > firstPart {
		size = firstPart
	}
	in, x := slow.NewReader(w, r, s.limits.silence, s.limits.rate), exchangeOf(r.Context())
	body := make([]byte, 0, size+1) // one more, to see the end without growing
	for {
		if len(body) == cap(body) {
			body = append(make([]byte, 0, 2*len(body)), body...)
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case !s.take(x, bodyMemory*int64(n)):
			return nil, s.noMemory("bodies")
		case int64(len(body)) > most:
			return nil, tooLarge()
		case err == io.EOF:
			return body, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, &problemTimeout
		case err != nil:
			return nil, problemInvalid.with("The body ended early.")
		}
	}
}

// firstPart is how much of a body has memory before it has arrived, in bytes.
const firstPart = 16 << 10

// answer sends a JSON text. A client that does not read it is given up.
func (s *Server) answer(w http.ResponseWriter, text []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	out := s.paced(w)
	if _, err := out.Write(text); err == nil {
		_ = out.FlushError()
	}
}

// paced returns what gives up a client that does not read its answer.
func (s *Server) paced(w http.ResponseWriter) *slow.Writer {
	return &slow.Writer{ResponseWriter: w, Pause: s.limits.silence}
}
