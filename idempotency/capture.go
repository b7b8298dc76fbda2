package idempotency

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A capture is the ResponseWriter of a guarded handler. It holds the answer
// back until it is stored; an answer that is flushed, or longer than what is
// stored, streams through it, and its beginning is kept.
//
//	open ── WriteHeader ── headed ── the handler returns ── settled, then sent
//	                          │
//	                          └── Flush, too long ── streaming ── settled, ended
//
// It has no Unwrap: what goes around it would not be stored.
type capture struct {
	mu     sync.Mutex // a handler may leave a writer behind
	w      http.ResponseWriter
	r      *http.Request
	keep   *scratch // nil once the answer is sent
	most   int64    // bytes of body that are stored
	before http.Header

	headed    bool
	ended     bool // the handler has returned
	streaming bool
	oversize  bool
	status    int
	sniffed   string // the Content-Type that net/http finds
	length    int64  // as the handler declared it; -1: not
	written   int64  // as net/http counts, with what it refuses
	accepted  int64
	controls  []string
}

// start makes the capture ready.
func (c *capture) start(w http.ResponseWriter, r *http.Request, s *scratch, most int64) {
	c.w, c.r, c.keep, c.most, c.length = w, r, s, most, -1
	if h := w.Header(); len(h) > 0 {
		c.before = h.Clone()
	}
}

// Header is the header of the ResponseWriter underneath, so that what handlers
// around the Middleware have set is part of the answer.
func (c *capture) Header() http.Header { return c.w.Header() }

// again returns the capture of another try: nothing of this one was sent, and
// nothing that it leaves behind writes to the next.
func (c *capture) again() *capture {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop()
	s := c.keep
	c.keep = nil
	s.header.reset()
	s.trailer.reset()
	s.answer = s.answer[:0]
	next := new(capture)
	next.start(c.w, c.r, s, c.most)
	return next
}

// WriteHeader passes an informational status on and remembers a final one with
// the header as it is now.
func (c *capture) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *capture) writeHeader(status int) {
	if c.over() {
		return
	}
	if c.headed {
		c.logSuperfluous()
		return
	}
	if status < 100 || status > 999 {
		panic("invalid WriteHeader code " + strconv.Itoa(status)) // as net/http does
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		c.inform(status)
		return
	}
	c.headed, c.status = true, status
	h := c.w.Header()
	c.controls = takeOurs(h)
	c.keep.header.take(h)
	c.length = declaredLength(h)
}

// inform passes an informational answer on, without what is not for clients.
func (c *capture) inform(status int) {
	if !c.r.ProtoAtLeast(1, 1) {
		return // which knows of no such answers (RFC 9110, section 15.2)
	}
	h := c.w.Header()
	hidden := make(http.Header)
	for name, lines := range h {
		if isOurs(name) {
			hidden[name] = lines
			delete(h, name)
		}
	}
	c.w.WriteHeader(status)
	maps.Copy(h, hidden)
}

// declaredLength reads the handler's Content-Length; net/http takes no notice
// of one that is not a number, and takes it away.
func declaredLength(h http.Header) int64 {
	lines, ok := h["Content-Length"]
	if !ok || len(lines) == 0 || lines[0] == "" {
		return -1
	}
	n, err := strconv.ParseInt(strings.Trim(lines[0], " \t"), 10, 64)
	if err != nil || n < 0 {
		delete(h, "Content-Length")
		return -1
	}
	return n
}

// Write keeps p and, while streaming, passes it on.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.accept(len(p)); err != nil {
		return 0, err
	}
	c.hold(len(p))
	if !c.streaming {
		c.keep.answer = append(c.keep.answer, p...)
		return len(p), nil
	}
	if !c.oversize {
		c.keep.answer = append(c.keep.answer, p...)
	}
	// The client may be gone; the work goes on, for its retry.
	_, _ = c.w.Write(p)
	return len(p), nil
}

// WriteString is Write without making bytes of s first.
func (c *capture) WriteString(s string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.accept(len(s)); err != nil {
		return 0, err
	}
	c.hold(len(s))
	if !c.oversize {
		c.keep.answer = append(c.keep.answer, s...)
	}
	if c.streaming {
		_, _ = io.WriteString(c.w, s)
	}
	return len(s), nil
}

// accept counts n bytes of body, or says why there can be none, as net/http
// does.
func (c *capture) accept(n int) error {
	if c.over() {
		return http.ErrHandlerTimeout // the request is over
	}
	if !c.headed {
		c.writeHeader(http.StatusOK)
	}
	switch {
	case n == 0:
		return nil
	case !bodyAllowed(c.status):
		return http.ErrBodyNotAllowed
	case c.length >= 0 && c.written+int64(n) > c.length:
		c.written += int64(n)
		return http.ErrContentLength
	}
	c.written += int64(n)
	c.accepted += int64(n)
	return nil
}

// hold makes room for n more bytes, or begins to stream when that is too much.
func (c *capture) hold(n int) {
	if c.oversize || int64(len(c.keep.answer)+n) <= c.most {
		return
	}
	c.stream()
	c.oversize = true
}

// stream sends what is there and lets through what comes.
func (c *capture) stream() {
	if c.streaming {
		return
	}
	c.streaming = true
	c.sniff()
	c.sendHead()
	if len(c.keep.answer) > 0 {
		_, _ = c.w.Write(c.keep.answer)
	}
}

// sendHead sends status and header as they were when the handler wrote them. What it has
// set since for the trailer stays.
func (c *capture) sendHead() {
	h := c.w.Header()
	later := make(http.Header)
	for _, name := range c.trailerNames(h) {
		later[name] = h[name]
	}
	c.keep.header.restore(h)
	c.w.WriteHeader(c.status)
	maps.Copy(h, later)
}

// sniff finds the Content-Type that net/http will, from what is there when the
// header leaves.
func (c *capture) sniff() {
	if len(c.keep.answer) == 0 || !bodyAllowed(c.status) {
		return
	}
	l := &c.keep.header
	if _, typed := l.lookup("Content-Type"); typed {
		return
	}
	if _, coded := l.lookup("Transfer-Encoding"); coded {
		return
	}
	if encoding, _ := l.lookup("Content-Encoding"); len(encoding) > 0 && encoding[0] != "" {
		return
	}
	c.sniffed = http.DetectContentType(c.keep.answer)
}

// ReadFrom copies from src. What is not kept goes to the connection directly.
func (c *capture) ReadFrom(src io.Reader) (n int64, err error) {
	for {
		m, done, err := c.readSome(src)
		n += m
		if done || err != nil {
			return n, err
		}
	}
}

// readSome reads into the kept answer, until its end or until it is too long;
// then it hands the rest over.
func (c *capture) readSome(src io.Reader) (n int64, done bool, err error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	c.mu.Lock()
	direct := !c.over() && c.oversize && c.length < 0 && bodyAllowed(c.status)
	w := c.w
	c.mu.Unlock()
	if direct {
		n, err = copyBuffered(w, src, *buf)
		c.mu.Lock()
		c.written += n
		c.accepted += n
		c.mu.Unlock()
		return n, true, err
	}
	m, err := src.Read(*buf)
	if m > 0 {
		written, writeErr := c.Write((*buf)[:m])
		if writeErr != nil {
			return int64(written), true, writeErr
		}
	}
	if err == io.EOF {
		return int64(m), true, nil
	}
	return int64(m), false, err
}

// copyBuffered copies by the writer's own ReadFrom where it has one; a client
// that went away does not end the reading.
func copyBuffered(w http.ResponseWriter, src io.Reader, buf []byte) (int64, error) {
	read := &countingReader{r: src}
	_, err := io.CopyBuffer(w, read, buf)
	if err != nil && read.err == nil {
		_, err = io.CopyBuffer(io.Discard, read, buf)
	}
	if read.err == io.EOF {
		err = nil
	}
	return read.n, err
}

// countingReader tells the reader's errors from the writer's.
type countingReader struct {
	r   io.Reader
	n   int64
	err error
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.n += int64(n)
	if err != nil {
		r.err = err
	}
	return n, err
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// Flush begins to stream.
func (c *capture) Flush() { _ = c.FlushError() }

// FlushError begins to stream and flushes what is underneath. As with Write, it is no
// error that the client is gone: a handler that gave up because of it would leave a part
// of its answer for the whole one.
func (c *capture) FlushError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over() {
		return http.ErrHandlerTimeout
	}
	if !c.headed {
		c.writeHeader(http.StatusOK)
	}
	c.stream()
	if err := http.NewResponseController(c.w).Flush(); errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Hijack is refused: an answer that goes around the capture cannot be stored.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, fmt.Errorf("idempotency: a guarded request cannot be hijacked: %w", http.ErrNotSupported)
}

// Push passes on.
func (c *capture) Push(target string, o *http.PushOptions) error { return push(c.w, target, o) }

func push(w http.ResponseWriter, target string, o *http.PushOptions) error {
	if p, ok := w.(http.Pusher); ok {
		return p.Push(target, o)
	}
	return http.ErrNotSupported
}

// SetReadDeadline passes on.
func (c *capture) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(c.w).SetReadDeadline(t)
}

// SetWriteDeadline passes on.
func (c *capture) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(c.w).SetWriteDeadline(t)
}

// EnableFullDuplex passes on; the request's body has been read, so that it
// changes nothing.
func (c *capture) EnableFullDuplex() error {
	return http.NewResponseController(c.w).EnableFullDuplex()
}

// finish is called when the handler has returned: nothing more comes. It
// reports whether the answer is whole.
func (c *capture) finish() (whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.headed {
		c.writeHeader(http.StatusOK)
	}
	if !c.streaming {
		c.sniff()
	}
	c.takeTrailer()
	c.ended = true
	return c.length < 0 || c.accepted == c.length || !bodyAllowed(c.status) ||
		c.r.Method == http.MethodHead
}

// trailerNames returns the fields of the handler's header that are for the trailer: those
// that it announced, and those it named with http.TrailerPrefix.
func (c *capture) trailerNames(h http.Header) (names []string) {
	announced, _ := c.keep.header.lookup("Trailer")
	for _, line := range announced {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
			if _, ok := h[name]; ok && !forbiddenTrailer(name) {
				names = append(names, name)
			}
		}
	}
	for name := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			names = append(names, name)
		}
	}
	return names
}

// takeTrailer notes the trailer.
func (c *capture) takeTrailer() {
	h := c.w.Header()
	names := c.trailerNames(h)
	if len(names) == 0 {
		return
	}
	trailer := make(http.Header)
	for _, name := range names {
		trailer[strings.TrimPrefix(name, http.TrailerPrefix)] = h[name]
	}
	takeOurs(trailer)
	takeOurs(h)
	c.keep.trailer.take(trailer)
}

// forbiddenTrailer tells the fields that net/http does not take for a trailer.
func forbiddenTrailer(name string) bool {
	return name == "Transfer-Encoding" || name == "Content-Length" || name == "Trailer"
}

// send sends an answer that was held back.
func (c *capture) send() {
	h := c.w.Header()
	c.keep.header.restore(h)
	trailer := &c.keep.trailer
	if len(trailer.names) > 0 {
		c.announce(h)
	}
	c.w.WriteHeader(c.status)
	if len(c.keep.answer) > 0 {
		_, _ = c.w.Write(c.keep.answer)
	}
	for i, name := range trailer.names {
		h[name] = slices.Clone(trailer.at(i))
	}
}

// announce makes room for the trailer, which is known already: with its names
// in the header net/http frames the answer so that a trailer can follow.
func (c *capture) announce(h http.Header) {
	delete(h, "Content-Length")
	announced, _ := c.keep.header.lookup("Trailer")
	lines := slices.Clone(announced)
	for _, name := range c.keep.trailer.names {
		delete(h, http.TrailerPrefix+name)
		if !hasListToken(announced, name) {
			lines = append(lines, name)
		}
	}
	h["Trailer"] = lines
}

// drop forgets what the handler wrote, so that another answer can be sent. It
// must not have streamed.
func (c *capture) drop() {
	h := c.w.Header()
	clear(h)
	maps.Copy(h, c.before)
}

// close takes the memory away: whoever still writes gets an error.
func (c *capture) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep = nil
}

// over reports whether nothing more is taken: what was is being settled and sent,
// or the memory is gone.
func (c *capture) over() bool { return c.ended || c.keep == nil }

// logSuperfluous says what net/http would have said.
func (c *capture) logSuperfluous() {
	at := ""
	for skip := 2; skip < 8; skip++ {
		pc, file, line, ok := runtime.Caller(skip)
		if !ok {
			break
		}
		name := runtime.FuncForPC(pc).Name()
		if !strings.HasPrefix(name, "github.com/dibs-go/dibs/idempotency.(*capture)") {
			if i := strings.LastIndexByte(file, '/'); i >= 0 {
				file = file[i+1:]
			}
			at = fmt.Sprintf(" from %s (%s:%d)", name, file, line)
			break
		}
	}
	text := "http: superfluous response.WriteHeader call" + at
	if server, ok := c.r.Context().Value(http.ServerContextKey).(*http.Server); ok && server.ErrorLog != nil {
		server.ErrorLog.Print(text)
		return
	}
	log.Print(text)
}

// bodyAllowed is what RFC 9110 says of the status.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
