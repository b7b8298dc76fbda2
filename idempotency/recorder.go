package idempotency

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/dialect"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/slow"
)

// A recorder is the ResponseWriter of a guarded handler. It holds the answer back until it is
// stored. An answer that is flushed, or longer than what is stored, streams through the recorder,
// which keeps its beginning.
//
//	open ── WriteHeader ── headed ── the handler returns ── settled, then sent
//	                          │
//	                          └── Flush, too long ── streaming ── settled, ended
//
// It has no Unwrap and no Hijack, because an answer that goes around it would not be stored.
type recorder struct {
	mu     sync.Mutex // a goroutine of the handler may outlive it
	m      *Middleware
	w      *slow.Writer
	ctx    context.Context // of the run
	room   *memory.Account // of what is kept of the answer
	r      *http.Request
	limit  time.Time   // of the run
	fields http.Header // of the handler

	status    int         // 0 before WriteHeader
	header    http.Header // as WriteHeader found it
	controls  []string    // of Idempotency-Control
	declared  int64       // Content-Length; -1: none
	length    int64       // of the body so far
	body      []byte      // not the rest of an oversize one, and not what the listener keeps
	dialect   dialect.Dialect
	listener  dialect.Listener // from WriteHeader on
	result    dialect.Result   // at the end
	trailer   http.Header
	streaming bool
	oversize  bool // what is stored of the answer is
	ended     bool // nothing more is accepted
}

// newRecorder returns the recorder of the run's answer.
func (r *run) newRecorder() *recorder {
	limit, _ := r.ctx.Deadline()
	r.w.Begin(limit)
	fields := r.w.Header().Clone() // what outer handlers have set is part of the answer
	return &recorder{m: r.m, w: r.w, ctx: r.ctx, room: &r.room, r: r.req.Request, dialect: r.dialect, limit: limit, fields: fields, declared: -1}
}

// Header returns the handler's header. The ResponseWriter below has another, because it may still
// read that when the handler continues.
func (rec *recorder) Header() http.Header { return rec.fields }

// WriteHeader passes an informational status on. It remembers a final one with the header as it is
// now.
func (rec *recorder) WriteHeader(status int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.ended:
	case rec.status != 0:
		rec.m.warn(&rec.m.warned.twoHeads, rec.r, "a handler called WriteHeader twice: the second call has no effect")
	case status < 100 || status > 999:
		panic("invalid WriteHeader code " + strconv.Itoa(status)) // as net/http does
	case status < 200 && status != http.StatusSwitchingProtocols:
		rec.inform(status)
	default:
		rec.head(status)
	}
}

// head remembers a final status, unless there is one.
func (rec *recorder) head(status int) {
	if rec.status != 0 {
		return
	}
	rec.status = status
	h := rec.fields
	rec.controls = takeOurs(h)
	if text := h.Get("Content-Length"); text != "" {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if rec.declared = n; err != nil || n < 0 {
			rec.declared = -1
			delete(h, "Content-Length") // as net/http does
		}
	}
	rec.header = h.Clone()
	rec.listener = rec.dialect.Listen(status, h, rec.m.options.MaxStored)
	rec.m.warnReplaced(rec.r, h, true)
}

// inform passes an informational answer on, without the Middleware's own fields.
func (rec *recorder) inform(status int) {
	if !rec.r.ProtoAtLeast(1, 1) {
		return // HTTP/1.0 has no such answers (RFC 9110, section 15.2)
	}
	h := rec.w.Header()
	before := maps.Clone(h)
	replaceFields(h, rec.fields)
	takeOurs(h)
	rec.w.Inform(status)
	replaceFields(rec.w.Header(), before)
}

// replaceFields makes h what from is.
func replaceFields(h, from http.Header) {
	clear(h)
	maps.Copy(h, from)
}

// Write keeps p and, if the answer streams, passes it on.
func (rec *recorder) Write(p []byte) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.ended {
		return 0, http.ErrHandlerTimeout
	}
	rec.head(http.StatusOK)
	n := int64(len(p))
	switch {
	case n == 0:
		return 0, nil
	case !bodyAllowed(rec.status):
		return 0, http.ErrBodyNotAllowed
	case rec.declared >= 0 && rec.length+n > rec.declared:
		return 0, http.ErrContentLength
	}
	if rec.length += n; rec.length > rec.m.options.MaxStored || !rec.hasRoom() {
		rec.stream()
		rec.oversize = true
	}
	switch {
	case rec.streaming && !rec.listener.Write(p):
	case !rec.oversize:
		rec.body = append(rec.body, p...)
	}
	if rec.streaming {
		// If the client has gone away or is too slow, the handler continues, for the client's retry.
		_, _ = rec.w.Write(p)
	}
	return len(p), nil
}

// hasRoom waits until there is memory for what is kept of the answer: the effect of the run has happened,
// so the answer is not refused. It reports false if the run ends first.
func (rec *recorder) hasRoom() bool {
	more := rec.length - rec.room.Held()
	return rec.oversize || more <= 0 || rec.room.Wait(rec.ctx, more) == nil
}

// stream sends what is there. What comes next is sent at once.
func (rec *recorder) stream() {
	if rec.streaming {
		return
	}
	rec.streaming = true
	rec.w.Begin(rec.limit)
	rec.sniff()
	rec.sendHead()
	if len(rec.body) > 0 {
		_, _ = rec.w.Write(rec.body)
	}
	if !rec.listener.Write(rec.body) {
		rec.body = nil
	}
}

// sendHead sends status and header as they were at WriteHeader.
func (rec *recorder) sendHead() {
	replaceFields(rec.w.Header(), rec.header)
	rec.w.WriteHeader(rec.status)
}

// sniff sets the Content-Type that net/http would guess when it sends the header.
func (rec *recorder) sniff() {
	_, typed := rec.header["Content-Type"]
	_, coded := rec.header["Transfer-Encoding"]
	if typed || coded || len(rec.body) == 0 || rec.header.Get("Content-Encoding") != "" {
		return
	}
	rec.header["Content-Type"] = []string{http.DetectContentType(rec.body)}
}

// Flush makes the answer stream.
func (rec *recorder) Flush() { _ = rec.FlushError() }

// FlushError makes the answer stream. That the client has gone away is not an error, as with Write: a
// handler that stopped because of it would leave a part of its answer for the whole.
func (rec *recorder) FlushError() error {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.ended {
		return http.ErrHandlerTimeout
	}
	rec.head(http.StatusOK)
	rec.stream()
	if err := http.NewResponseController(rec.w).Flush(); errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// SetWriteDeadline passes on.
func (rec *recorder) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(rec.w).SetWriteDeadline(t)
}

// finish makes all later writes fail. It reports whether the answer is whole.
func (rec *recorder) finish() (whole bool) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.ended = true
	rec.w.HandlerDone()
	rec.head(http.StatusOK)
	if !rec.streaming {
		rec.sniff()
	}
	takeOurs(rec.fields)
	rec.trailer = make(http.Header)
	for _, name := range rec.trailerNames(rec.fields) {
		rec.trailer[strings.TrimPrefix(name, http.TrailerPrefix)] = slices.Clone(rec.fields[name])
		if rec.streaming {
			rec.w.Header()[name] = rec.fields[name]
		}
	}
	takeOurs(rec.trailer)
	rec.result = rec.listener.End(dialect.Answer{
		Status: rec.status, Header: rec.header, Trailer: rec.trailer, Body: rec.body, Streamed: rec.streaming, Cut: rec.oversize,
	})
	rec.oversize = rec.result.Cut
	whole = rec.declared < 0 || rec.length == rec.declared || !bodyAllowed(rec.status) || rec.r.Method == http.MethodHead
	return whole && !rec.result.None
}

// trailerNames returns the fields of a handler's header that belong to the trailer: those that it
// announced, and those with http.TrailerPrefix.
func (rec *recorder) trailerNames(h http.Header) (names []string) {
	for name := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) || !framing[name] && hasListToken(rec.header["Trailer"], name) {
			names = append(names, name)
		}
	}
	return names
}

// framing are the fields that say how a message is framed, and thus cannot be in a trailer.
var framing = map[string]bool{"Transfer-Encoding": true, "Content-Length": true, "Trailer": true}

// send sends an answer that was held back.
func (rec *recorder) send() {
	if len(rec.trailer) > 0 {
		announceTrailer(rec.header, rec.trailer)
	}
	rec.sendHead()
	if len(rec.body) > 0 {
		_, _ = rec.w.Write(rec.body)
	}
	maps.Copy(rec.w.Header(), rec.trailer)
}

// announceTrailer makes net/http frame the answer so that the trailer can follow.
func announceTrailer(h, trailer http.Header) {
	delete(h, "Content-Length")
	for name := range trailer {
		delete(h, http.TrailerPrefix+name)
		if !hasListToken(h["Trailer"], name) {
			h["Trailer"] = append(h["Trailer"], name)
		}
	}
}

// bodyAllowed reports whether an answer with the status may have a body (RFC 9110).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
