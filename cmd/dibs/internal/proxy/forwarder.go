package proxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/slow"
)

// forwarder sends a request to the origin, and the answer back. The guard, if there is one,
// is in front of it.
type forwarder struct {
	proxy     *httputil.ReverseProxy
	transport *upstream.Transport
	forwarded bool
	trusted   []netip.Prefix // peers whose forwarded fields are kept

	trustsSockets bool     // those of the peers of a Unix socket, too
	endToEnd      []string // fields that ReverseProxy removes and that the origin gets nevertheless
	policy        *Policy
}

func newForwarder(p *Policy, t *upstream.Transport) *forwarder {
	f := &forwarder{transport: t, forwarded: p.Forwarded || len(p.TrustedProxies) > 0, trusted: networks(p.TrustedProxies), trustsSockets: slices.Contains(p.TrustedProxies, trustSockets), endToEnd: p.endToEnd(), policy: p}
	f.proxy = &httputil.ReverseProxy{
		Rewrite:        f.rewrite,
		ModifyResponse: cleanAnswer,
		ErrorHandler:   f.fail,
		Transport:      t,
		BufferPool:     buffers,
		ErrorLog:       log.New(io.Discard, "", 0), // its lines quote the origin
	}
	if !p.Guard {
		f.proxy.ModifyResponse = cleanUnguarded
	}
	return f
}

func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if upstream.CheckTarget(r) != nil {
		slow.Answer(w, r, func() { f.policy.writeProblem(w, r, badTarget) })
		return
	}
	_, guarded := dibs.FromContext(r.Context())
	a := &answer{ResponseWriter: w, request: r, guarded: guarded}
	if guarded {
		decline(r.Header)
		defer recoverCutOff(r.Context())
	} else if r.Body != nil && r.Body != http.NoBody {
		// The origin may answer before it has the whole request. The error is HTTP/2's, which
		// is always full duplex.
		_ = http.NewResponseController(w).EnableFullDuplex()
		a.upload = &upload{body: r.Body, length: r.ContentLength}
		r = r.WithContext(r.Context())
		r.Body = a.upload
	}
	f.proxy.ServeHTTP(a, r)
	if a.unread() {
		slow.Read(w, r) // not if the answer was cut off, because that panics
	}
}

// upload is the body of a request that the origin may answer before it has read it. Close
// does nothing, because the rest is read after the answer.
type upload struct {
	mu     sync.Mutex // of body
	body   io.Reader
	length int64 // -1 if unknown
	n      atomic.Int64
	ended  atomic.Bool
}

// Read reads from the body. It is locked because the transport may read after the answer was
// sent, and net/http ends only one of two reads of an HTTP/2 body at a deadline.
func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, err := u.body.Read(p)
	if all := u.n.Add(int64(n)); err == io.EOF || u.length >= 0 && all >= u.length {
		u.ended.Store(true)
	}
	return n, err
}

// Close does nothing.
func (u *upload) Close() error { return nil }

// recoverCutOff tells the guard that the origin's answer was cut off, for which ReverseProxy
// panics.
func recoverCutOff(ctx context.Context) {
	if p := recover(); p != nil {
		if p != http.ErrAbortHandler || !idempotency.Fail(ctx, idempotency.BrokeOff) {
			panic(p)
		}
		originAnswered(ctx, false)
	}
}

// rewrite makes the request that the origin gets.
func (f *forwarder) rewrite(r *httputil.ProxyRequest) {
	h := r.Out.Header
	f.transport.Direct(r.Out, r.In)
	// net/http fills in the trailer at the end of the body. ReverseProxy has a copy from
	// before that.
	r.Out.Trailer = r.In.Trailer
	if len(r.In.Trailer) > 0 {
		f.cleanTrailer(r.In.Trailer)
		r.Out.Body = &trailedBody{r.Out.Body, func() { f.cleanTrailer(r.In.Trailer) }}
	}
	for _, name := range f.endToEnd {
		if values, ok := r.In.Header[name]; ok {
			h[name] = values
		}
	}
	dropPageCookie(h)
	h[server.RequestIDHeader] = []string{exchangeOf(r.In.Context()).ID}
	if lease, ok := dibs.FromContext(r.In.Context()); ok {
		h[fenceHeader] = []string{strconv.FormatUint(lease.Fence(), 10)}
	}
	if f.forwarded {
		f.setForwarded(h, r.In)
	}
}

// trailedBody is a body with a trailer, which net/http fills in at the end of the body.
type trailedBody struct {
	io.ReadCloser
	atEnd func()
}

// Read reads from the body.
func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.atEnd()
	}
	return n, err
}

// cleanAnswer removes the field that marks a replay. It also removes the length of an HTTP/2
// answer with a trailer, because an HTTP/1 client gets a trailer only after chunks.
func cleanAnswer(res *http.Response) error {
	originAnswered(res.Request.Context(), true)
	delete(res.Header, replayedHeader)
	if len(res.Trailer) > 0 {
		delete(res.Header, "Content-Length")
	}
	if res.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection
		res.Body = &answerBody{res.Body, exchangeOf(res.Request.Context())}
	}
	return nil
}

// answerBody is the body of the origin's answer. An error of reading it is the exchange's failure.
type answerBody struct {
	io.ReadCloser
	exchange *exchange
}

// Read reads from the body.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && !errors.Is(err, context.Canceled) {
		b.exchange.failure = &upstream.Error{Kind: upstream.HungUp, Err: err}
	}
	return n, err
}

// cleanUnguarded is cleanAnswer without a guard. It also removes the field for the guard.
func cleanUnguarded(res *http.Response) error {
	delete(res.Header, controlHeader)
	return cleanAnswer(res)
}

// fail answers if the origin did not.
func (f *forwarder) fail(w http.ResponseWriter, r *http.Request, err error) {
	failure := idempotency.HungUp
	if e, ok := errors.AsType[*upstream.Error](err); ok {
		switch e.Kind {
		case upstream.Unreached:
			failure = idempotency.Unreached
		case upstream.TimedOut:
			failure = idempotency.TimedOut
		}
	}
	if !errors.Is(err, context.Canceled) {
		exchangeOf(r.Context()).failure = err
	}
	if !idempotency.Fail(r.Context(), failure) {
		f.policy.writeProblem(w, r, idempotency.FailureProblem(failure))
	}
}

// answer writes the origin's answer to the client.
type answer struct {
	http.ResponseWriter
	request *http.Request
	upload  *upload // the request's body; nil if a guard has read it
	guarded bool
	status  int  // of the final header; 0 before it
	streams bool // each part is sent at once
}

// WriteHeader sends the header.
func (a *answer) WriteHeader(status int) {
	r := a.request
	if !r.ProtoAtLeast(1, 1) && status < 200 && status != http.StatusSwitchingProtocols {
		return // because HTTP/1.0 has no informational answers (RFC 9110, section 15.2)
	}
	if h := a.Header(); status >= 200 && a.status == 0 {
		a.status = status
		a.streams = !a.guarded || streams(h)
		// Otherwise net/http would guess a type for an answer without one.
		if _, ok := h["Content-Type"]; !ok {
			h["Content-Type"] = nil
		}
		// Set here, because ReverseProxy clears the header after an informational answer.
		if lastOfConnection(r) || r.ProtoMajor == 1 && a.upload != nil && !a.upload.ended.Load() {
			slow.CloseAfter(h)
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// FlushError sends the parts so far if the answer streams. Other answers are stored as a
// whole before their first byte is sent. ReverseProxy flushes every answer of unknown length.
func (a *answer) FlushError() error {
	if !a.streams {
		return nil
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// unread reports whether the rest of the request must be read, because the client may still
// be sending it and would otherwise miss the answer. Over HTTP/2 this delays the end of the
// answer, so it is done for refusals only.
func (a *answer) unread() bool {
	u := a.upload
	if u == nil || u.ended.Load() || a.status == 0 {
		return false
	}
	return a.request.ProtoMajor == 1 || a.status >= 400 && u.n.Load() > 0
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// streamed are the media types whose parts must arrive one by one.
var streamed = []string{
	"text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl",
	"application/json-seq", "application/stream+json", "application/grpc", "multipart/x-mixed-replace",
}

// streams reports whether an answer is sent part by part. Origins can also ask for it with
// X-Accel-Buffering, as other proxies support it.
func streams(h http.Header) bool {
	if strings.EqualFold(h.Get("X-Accel-Buffering"), "no") {
		return true
	}
	media := media(h)
	return slices.Contains(streamed, media) || strings.HasPrefix(media, "application/grpc+")
}

// media returns the answer's media type, in lower case.
func media(h http.Header) string {
	media, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// bufferPool has the buffers for copying answers.
type bufferPool struct{ sync.Pool }

var buffers = &bufferPool{sync.Pool{New: func() any { return new([32 << 10]byte) }}}

func (p *bufferPool) Get() []byte { return p.Pool.Get().(*[32 << 10]byte)[:] }

func (p *bufferPool) Put(b []byte) { p.Pool.Put((*[32 << 10]byte)(b)) }
