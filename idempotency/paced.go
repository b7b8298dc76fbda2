package idempotency

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/linger"
)

// pacedPart is how many bytes the client must take within Options.BodyTimeout.
const pacedPart = 16 << 10

// ErrSlowClient is Event.Err of a request whose answer broke off, because its client took it too
// slowly (Options.BodyTimeout). What became of its run and its key is as without it.
var ErrSlowClient = errors.New("idempotency: the client takes the answer too slowly")

// A pacedWriter sends an answer, part by part, to a client that may be slow. If the client does not
// take a part in time, the transfer breaks and nothing more is sent.
//
// It sets no deadline before a write. That would replace one of the server or the handler, and over
// HTTP/2 it would also break a stream while the handler pauses.
type pacedWriter struct {
	http.ResponseWriter
	m *Middleware
	r *http.Request

	run    bool          // a handler writes, which must not wait for a write that does not end
	budget time.Duration // while it runs: how long the client may still make it wait
	part   []byte        // while it runs: what is written, because the handler may change its own
	left   chan outcome  // of a write that the handler did not wait for

	mu   sync.Mutex
	cut  bool // under mu: the transfer was broken
	gone bool // under mu: nothing more is sent
}

// An outcome is how a write ended.
type outcome struct {
	err      error
	panicked any
}

// begin says that a handler streams its answer until limit. The client may make it wait for half of
// that time, so that a run can end within its limit without the client.
func (p *pacedWriter) begin(limit time.Time) {
	p.run, p.budget = true, time.Until(limit)/2
	if p.budget <= 0 { // it takes longer than it may, and not because of the client
		p.budget = p.m.options.BodyTimeout
	}
}

// wasCut reports whether the transfer was broken.
func (p *pacedWriter) wasCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// isGone reports whether nothing more is sent.
func (p *pacedWriter) isGone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// breakOff breaks the transfer. A write under way then ends.
func (p *pacedWriter) breakOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.gone = true, true
	if err := http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Unix(1, 0)); err != nil {
		p.m.warn(&p.m.warned.noDeadline, p.r, "a client takes its answer too slowly, and the write to it cannot be ended: "+
			"the ResponseWriter of an outer handler needs a method Unwrap or SetWriteDeadline", "error", err)
	}
}

// timed calls write, and breaks the transfer if that takes too long.
func (p *pacedWriter) timed(write func() error) (err error) {
	if p.isGone() {
		return ErrSlowClient
	}
	if p.run {
		err = p.whileRunning(write)
	} else {
		timer := time.AfterFunc(p.m.options.BodyTimeout, p.breakOff)
		err = write()
		timer.Stop()
	}
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
	}
	return err
}

// whileRunning is timed while a handler runs. It does not wait until a write ends whose transfer was
// broken, because over HTTP/2 that takes a client that reads its connection.
func (p *pacedWriter) whileRunning(write func() error) error {
	began := time.Now()
	ended := make(chan outcome, 1)
	go func() {
		o := outcome{panicked: errors.New("idempotency: a ResponseWriter called runtime.Goexit")}
		defer func() {
			if v := recover(); v != nil {
				o.panicked = v
			}
			ended <- o
		}()
		o = outcome{err: write()}
	}()
	timer := time.NewTimer(min(p.m.options.BodyTimeout, p.budget))
	defer timer.Stop()
	select {
	case o := <-ended:
		p.budget -= time.Since(began)
		if o.panicked != nil {
			panic(o.panicked)
		}
		return o.err
	case <-timer.C:
		p.left = ended
		p.breakOff()
		return ErrSlowClient
	}
}

// Write sends b in parts.
func (p *pacedWriter) Write(b []byte) (n int, err error) {
	for first := true; err == nil && (first || n < len(b)); first = false {
		if p.isGone() {
			return n, ErrSlowClient
		}
		part := b[n:min(len(b), n+pacedPart)]
		if p.run {
			p.part = append(p.part[:0], part...)
			part = p.part
		}
		err = p.timed(func() error {
			_, err := p.ResponseWriter.Write(part)
			return err
		})
		if err == nil {
			n += len(part)
		}
	}
	return n, err
}

// FlushError sends what is buffered.
func (p *pacedWriter) FlushError() error {
	return p.timed(http.NewResponseController(p.ResponseWriter).Flush)
}

// Header returns the header of the writer below, which may still read it if nothing more is sent.
func (p *pacedWriter) Header() http.Header {
	if p.isGone() {
		return make(http.Header)
	}
	return p.ResponseWriter.Header()
}

// WriteHeader sends a header. A final one goes with the first part, and an informational one at
// once.
func (p *pacedWriter) WriteHeader(status int) {
	if p.isGone() {
		return
	}
	if status < 200 {
		defer time.AfterFunc(p.m.options.BodyTimeout, p.breakOff).Stop()
	}
	p.ResponseWriter.WriteHeader(status)
}

// inform sends an informational header while a handler runs that has its own header.
func (p *pacedWriter) inform(status int) {
	_ = p.timed(func() error {
		p.ResponseWriter.WriteHeader(status)
		return nil
	})
}

// Unwrap serves http.ResponseController for what is not here.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// end waits until nothing is written any more. By then everything that other requests may want has
// been given back.
func (p *pacedWriter) end() {
	if p.left != nil {
		<-p.left
	}
}

// A pacedReader is a body whose sender may pause no longer than pause, and must send leastRate after
// its first pause.
type pacedReader struct {
	w     http.ResponseWriter
	r     *http.Request
	pause time.Duration
	began time.Time // when reading began
	n     int64     // bytes so far
}

// leastRate is how many bytes a second a body must have, beside a pause. A sender of a byte a second
// would otherwise keep memory for days.
const leastRate = 500

// Read reads from the body. After a pause that was too long it returns os.ErrDeadlineExceeded.
func (r *pacedReader) Read(p []byte) (int, error) {
	now := time.Now()
	if r.began.IsZero() {
		r.began = now
	}
	end := now.Add(r.pause)
	if slow := r.began.Add(r.pause + time.Duration(r.n/leastRate)*time.Second); slow.Before(end) {
		end = slow
	}
	linger.Within(r.w, r.r, end)
	n, err := r.r.Body.Read(p)
	r.n += int64(n)
	switch {
	case err == io.EOF:
		linger.Within(r.w, r.r, time.Time{}) // the deadline must not meet the next request
	case err != nil && !time.Now().Before(end):
		err = os.ErrDeadlineExceeded // within a trailer net/http returns another error
	}
	return n, err
}
