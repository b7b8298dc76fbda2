package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/linger"
)

// forwarder sends a request to the origin and its answer back. It stands behind
// the guard, where one is.
type forwarder struct {
	proxy     *httputil.ReverseProxy
	transport *upstream.Transport
	errors    *log.Logger
	forwarded bool
	docsURL   string
}

func newForwarder(p *Policy, t *upstream.Transport, errors *log.Logger) *forwarder {
	f := &forwarder{transport: t, errors: errors, forwarded: p.Forwarded, docsURL: p.Options.DocsURL}
	f.proxy = &httputil.ReverseProxy{
		Rewrite:        f.rewrite,
		ModifyResponse: sift,
		ErrorHandler:   f.fail,
		Transport:      t,
		BufferPool:     buffers,
		ErrorLog:       errors,
	}
	if !p.Guard {
		f.proxy.ModifyResponse = siftUnguarded
	}
	return f
}

func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if upstream.CheckTarget(r) != nil {
		linger.Answer(w, r, func() { idempotency.WriteProblem(w, r, f.docsURL, badTarget) })
		return
	}
	_, guarded := dibs.FromContext(r.Context())
	a := &answer{ResponseWriter: w, request: r, guarded: guarded}
	if guarded {
		defer brokeOff(r.Context())
	} else if r.Body != nil && r.Body != http.NoBody {
		// The origin may answer while it is still being sent the request.
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always does, and says it cannot
		a.upload = &upload{body: r.Body, length: r.ContentLength}
		r = r.WithContext(r.Context())
		r.Body = a.upload
	}
	f.proxy.ServeHTTP(a, r)
	if a.wanting() {
		linger.Read(w, r) // unless the answer broke off, which is a panic
	}
}

// upload is the body of a request that the origin may answer before it has it all. What
// the origin does not want is read all the same, so that Close does nothing.
type upload struct {
	mu     sync.Mutex // is held while the body is read
	body   io.Reader
	length int64 // -1: unknown
	n      atomic.Int64
	ended  atomic.Bool
}

// Read reads from the body. The transport may still do so when the answer has been sent.
// Of two readers of an HTTP/2 body, net/http tells only one that the time is up.
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

// brokeOff tells the guard that the answer of the origin ended too early, which
// is what ReverseProxy panics about.
func brokeOff(ctx context.Context) {
	if p := recover(); p != nil {
		if p != http.ErrAbortHandler || !idempotency.Fail(ctx, idempotency.BrokeOff) {
			panic(p)
		}
		originAnswered(ctx, false)
	}
}

// Header fields between us and the origin.
const (
	fenceHeader    = "Dibs-Fence"
	replayedHeader = "Idempotent-Replayed"
	controlHeader  = "Idempotency-Control"
)

// ours are what only the proxy says to the origin, or to the client.
var ours = []string{fenceHeader, replayedHeader, controlHeader}

// endToEnd are fields that ReverseProxy takes out, and that the origin gets all
// the same: a client cannot hide the key from it by naming it in Connection,
// and what other proxies said of the client is not ours to drop.
var endToEnd = []string{"Idempotency-Key", "X-Idempotency-Key", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite makes the request that the origin gets.
func (f *forwarder) rewrite(r *httputil.ProxyRequest) {
	f.transport.Direct(r.Out, r.In)
	// The server fills in the trailers that it announced when the body ends;
	// what ReverseProxy has is a copy from before.
	r.Out.Trailer = r.In.Trailer
	if len(r.In.Trailer) > 0 {
		siftTrailer(r.In.Trailer)
		r.Out.Body = &siftedBody{ReadCloser: r.Out.Body, trailer: r.In.Trailer}
	}
	h := r.Out.Header
	for _, name := range endToEnd {
		if values, ok := r.In.Header[name]; ok {
			h[name] = values
		}
	}
	dropForged(h)
	if offers := h["Upgrade"]; len(offers) > 0 && declined(offers[0]) {
		delete(h, "Upgrade")
		delete(h, "Connection")
	}
	if lease, ok := dibs.FromContext(r.In.Context()); ok {
		h[fenceHeader] = []string{strconv.FormatUint(lease.Fence(), 10)}
	}
	if f.forwarded {
		for _, field := range forwardedFields(r.In) {
			h.Set(field.name, field.value)
		}
	}
}

// dropForged takes out what an outsider may not say to the origin: the fields that are
// ours, in every spelling; and those that the origin believes the proxy with, spelled with
// "_", which CGI, WSGI, Rack and PHP read as "-", or with ".", which some CGI servers do.
func dropForged(h http.Header) {
	for name := range h {
		dashed := http.CanonicalHeaderKey(strings.Map(dash, name))
		if slices.Contains(ours, dashed) ||
			name != dashed && (slices.Contains(endToEnd, dashed) || strings.HasPrefix(dashed, "X-Forwarded-")) {
			delete(h, name)
		}
	}
}

// dash is a character of a field's name as the laxest origin reads it: what is neither a
// letter nor a digit is "-".
func dash(c rune) rune {
	if strings.ContainsRune("!#$%&'*+.^_`|~", c) {
		return '-'
	}
	return c
}

// declined reports whether an Upgrade offers nothing but HTTP or TLS. Such an offer is
// for the next server to take up, which is this one, and it does not. An origin that took
// it up would be spoken to past the guard from then on.
func declined(offer string) bool {
	for name := range strings.SplitSeq(offer, ",") {
		name, _, _ = strings.Cut(strings.Trim(name, " \t"), "/")
		switch strings.ToLower(name) {
		case "", "h2c", "http", "tls":
		default:
			return false
		}
	}
	return true
}

// siftTrailer takes out of a request's trailer what an outsider may not say, and
// what frames a message: net/http refuses to send that, or sends it where an
// origin may take it for a header.
func siftTrailer(trailer http.Header) {
	dropForged(trailer)
	for _, name := range []string{"Content-Length", "Transfer-Encoding", "Trailer"} {
		delete(trailer, name)
	}
}

// siftedBody is a body with a trailer, which the server fills in at its end.
type siftedBody struct {
	io.ReadCloser
	trailer http.Header
}

// Read reads from the body.
func (b *siftedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		siftTrailer(b.trailer)
	}
	return n, err
}

// field is a header field with one value.
type field struct{ name, value string }

// forwardedFields says who the client is, behind what proxies before us said.
func forwardedFields(r *http.Request) [3]field {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return [...]field{
		{"X-Forwarded-For", strings.Join(append(slices.Clone(r.Header["X-Forwarded-For"]), host), ", ")},
		{"X-Forwarded-Host", cmp.Or(r.Header.Get("X-Forwarded-Host"), r.Host)},
		{"X-Forwarded-Proto", cmp.Or(r.Header.Get("X-Forwarded-Proto"), "http")},
	}
}

// sift drops what an origin may not say, that the answer is a replay; and in HTTP/2 the
// length of an answer with a trailer: a client of HTTP/1 gets that only after chunks.
func sift(res *http.Response) error {
	originAnswered(res.Request.Context(), true)
	delete(res.Header, replayedHeader)
	if len(res.Trailer) > 0 {
		delete(res.Header, "Content-Length")
	}
	return nil
}

// siftUnguarded is sift where there is no guard to act on what the
// origin says of its answer, and to keep it from the client.
func siftUnguarded(res *http.Response) error {
	delete(res.Header, controlHeader)
	return sift(res)
}

// fail answers for an origin that did not.
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
		f.errors.Print(err)
	}
	if !idempotency.Fail(r.Context(), failure) {
		idempotency.WriteProblem(w, r, f.docsURL, idempotency.FailureProblem(failure))
	}
}

// answer is the origin's answer on its way back.
type answer struct {
	http.ResponseWriter
	request *http.Request
	upload  *upload // its body, where no guard has read it
	guarded bool
	status  int  // of the final header; 0 until it is there
	streams bool // what comes is passed on at once
}

// WriteHeader passes the header on.
func (a *answer) WriteHeader(status int) {
	r := a.request
	if !r.ProtoAtLeast(1, 1) && status < 200 && status != http.StatusSwitchingProtocols {
		return // HTTP/1.0 knows of no such answers (RFC 9110, section 15.2)
	}
	if h := a.Header(); status >= 200 && a.status == 0 {
		a.status = status
		a.streams = !a.guarded || streams(h)
		// net/http would guess a type for an answer that has none.
		if _, ok := h["Content-Type"]; !ok {
			h["Content-Type"] = nil
		}
		// ReverseProxy clears the header after an informational answer.
		if lastOfConnection(r) || r.ProtoMajor == 1 && a.upload != nil && !a.upload.ended.Load() {
			linger.CloseAfter(h)
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// FlushError passes on what came so far, if the answer is one that streams. One
// that does not is stored as a whole before its first byte leaves, even if its
// length is not known in advance, which is why ReverseProxy flushes it.
func (a *answer) FlushError() error {
	if !a.streams {
		return nil
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// wanting reports whether the client may still send what nobody wants, and would miss the
// answer if it could not. Over HTTP/2 the end of an answer that is no refusal is not held
// up by that: it may be what the client waits for.
func (a *answer) wanting() bool {
	u := a.upload
	if u == nil || u.ended.Load() || a.status == 0 {
		return false
	}
	return a.request.ProtoMajor == 1 || a.status >= 400 && u.n.Load() > 0
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// streamed are the media types whose point is that parts arrive one by one.
var streamed = []string{
	"text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl",
	"application/json-seq", "application/stream+json", "application/grpc", "multipart/x-mixed-replace",
}

// streams reports whether an answer is to be passed on piece by piece. Origins
// say so to other proxies by X-Accel-Buffering as well.
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

// bufferPool lends the buffers that answers are copied with.
type bufferPool struct{ sync.Pool }

var buffers = &bufferPool{sync.Pool{New: func() any { return new([32 << 10]byte) }}}

func (p *bufferPool) Get() []byte { return p.Pool.Get().(*[32 << 10]byte)[:] }

func (p *bufferPool) Put(b []byte) { p.Pool.Put((*[32 << 10]byte)(b)) }
