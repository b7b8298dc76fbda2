package slow

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

// Part is how many bytes the client must take within Writer.Pause.
const Part = 16 << 10

// ErrSlow is the error of a transfer that broke off, because the client took it too slowly.
var ErrSlow = errors.New("the client takes the answer too slowly")

// A Writer sends an answer, part by part, to a client that may be slow. If the client does not
// take a part in time, the transfer breaks and nothing more is sent.
//
// It sets no deadline before a write. That would replace one of the server or the handler, and over
// HTTP/2 it would also break a stream while the handler pauses.
type Writer struct {
	http.ResponseWriter
	// Pause is how long the client may take for each part.
	Pause time.Duration
	// Stuck is called if the transfer cannot be broken, because there is no connection.
	Stuck func(error)

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

// Begin says that a handler streams its answer until limit. The client may make it wait for half of
// that time, so that a run can end within its limit without the client.
func (p *Writer) Begin(limit time.Time) {
	p.run, p.budget = true, time.Until(limit)/2
	if p.budget <= 0 { // it takes longer than it may, and not because of the client
		p.budget = p.Pause
	}
}

// HandlerDone says that no handler writes any more: what is sent now is waited for.
func (p *Writer) HandlerDone() { p.run = false }

// WasCut reports whether the transfer was broken.
func (p *Writer) WasCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// isGone reports whether nothing more is sent.
func (p *Writer) isGone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// breakOff breaks the transfer. A write under way then ends.
func (p *Writer) breakOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.gone = true, true
	if err := http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Unix(1, 0)); err != nil && p.Stuck != nil {
		p.Stuck(err)
	}
}

// timed calls write, and breaks the transfer if that takes too long.
func (p *Writer) timed(write func() error) (err error) {
	if p.isGone() {
		return ErrSlow
	}
	if p.run {
		err = p.whileRunning(write)
	} else {
		timer := time.AfterFunc(p.Pause, p.breakOff)
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
func (p *Writer) whileRunning(write func() error) error {
	began := time.Now()
	ended := make(chan outcome, 1)
	go func() {
		o := outcome{panicked: errors.New("a ResponseWriter called runtime.Goexit")}
		defer func() {
			if v := recover(); v != nil {
				o.panicked = v
			}
			ended <- o
		}()
		o = outcome{err: write()}
	}()
	timer := time.NewTimer(min(p.Pause, p.budget))
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
		return ErrSlow
	}
}

// Write sends b in parts.
func (p *Writer) Write(b []byte) (n int, err error) {
	for first := true; err == nil && (first || n < len(b)); first = false {
		if p.isGone() {
			return n, ErrSlow
		}
		part := b[n:min(len(b), n+Part)]
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
func (p *Writer) FlushError() error {
	return p.timed(http.NewResponseController(p.ResponseWriter).Flush)
}

// Header returns the header of the writer below, which may still read it if nothing more is sent.
func (p *Writer) Header() http.Header {
	if p.isGone() {
		return make(http.Header)
	}
	return p.ResponseWriter.Header()
}

// WriteHeader sends a header. A final one goes with the first part, and an informational one at
// once.
func (p *Writer) WriteHeader(status int) {
	if p.isGone() {
		return
	}
	if status < 200 {
		defer time.AfterFunc(p.Pause, p.breakOff).Stop()
	}
	p.ResponseWriter.WriteHeader(status)
}

// Inform sends an informational header while a handler runs that has its own header.
func (p *Writer) Inform(status int) {
	_ = p.timed(func() error {
		p.ResponseWriter.WriteHeader(status)
		return nil
	})
}

// Unwrap serves http.ResponseController for what is not here.
func (p *Writer) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// End waits until nothing is written any more. By then everything that other requests may want has
// been given back.
func (p *Writer) End() {
	if p.left != nil {
		<-p.left
	}
}
