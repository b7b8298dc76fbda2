package slow

import (
	"io"
	"net/http"
	"os"
	"time"
)

// LeastRate is how many bytes a second a body must have, as mod_reqtimeout of Apache demands. A sender
// of a byte a second would otherwise keep memory for days.
const LeastRate = 500

// A Reader is the body of a request whose client may send slowly, and not too slowly: in each span of
// Pause it must send the bytes of Pause at Rate, or the rest of the body. So a body of n bytes takes
// at most Pause and the time of n bytes at Rate.
type Reader struct {
	w     http.ResponseWriter
	r     *http.Request
	Pause time.Duration // the longest pause of the client
	Rate  int64         // bytes a second

	span  time.Duration
	began time.Time // when the span began; zero before the first read
	n     int64     // bytes in it
}

// NewReader returns a Reader of the request's body.
func NewReader(w http.ResponseWriter, r *http.Request, pause time.Duration, rate int64) *Reader {
	return &Reader{w: w, r: r, Pause: pause, Rate: rate, span: pause}
}

// Read reads from the body. If the client was too slow it returns os.ErrDeadlineExceeded.
func (r *Reader) Read(p []byte) (int, error) {
	now := time.Now()
	if r.began.IsZero() || float64(r.n) >= float64(r.Rate)*r.span.Seconds() {
		r.began, r.n = now, 0
	}
	end := now.Add(r.Pause)
	if span := r.began.Add(r.span); span.Before(end) {
		end = span
	}
	Within(r.w, r.r, end)
	n, err := r.r.Body.Read(p)
	r.n += int64(n)
	switch {
	case err == io.EOF:
		Within(r.w, r.r, time.Time{}) // the deadline must not meet the next request
	case err != nil && !time.Now().Before(end):
		err = os.ErrDeadlineExceeded // within a trailer net/http returns another error
	}
	return n, err
}
