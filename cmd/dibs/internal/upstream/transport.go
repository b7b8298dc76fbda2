// Package upstream sends requests to the origin, each one that may have an
// effect exactly once.
//
// net/http's Transport sends a request again, silently, when a kept-alive
// connection dies and it believes the request to be replayable: over HTTP/1 one
// without a body that carries an Idempotency-Key, whatever its method, and over
// HTTP/2 also one whose stream the peer reset with PROTOCOL_ERROR. For a proxy
// whose promise is that the origin runs a request once, both are wrong (RFC
// 9110, section 9.2.2). The Transport here lets a request go out again only
// when it is certain that nothing of it reached the origin, and says of one
// that failed whether it did.
package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options of a Transport. The zero value, and nil, mean the defaults.
type Options struct {
	// ConnectTimeout bounds making a connection, TLS included. Default: 5 s.
	ConnectTimeout time.Duration
	// IdleConns is how many idle connections are kept. Default: 1024.
	IdleConns int
	// IdleTimeout is how long an idle connection is kept. Default: 90 s.
	IdleTimeout time.Duration
	// TLS configures https origins. Default: the system's roots.
	TLS *tls.Config
}

// Transport is the http.RoundTripper to one origin.
type Transport struct {
	scheme string // of the requests that net/http sees: http or https
	host   string
	prefix string // a path that is put before every request's
	base   *http.Transport
	old    *http.Transport // HTTP/1 to an origin of HTTP/2, for other protocols; or base
	dialer *net.Dialer
	tls    *tls.Config
	limit  time.Duration
}

// New returns a Transport to the origin at the URL: http://, https:// (which
// negotiates HTTP/2) or h2c:// (HTTP/2 without TLS). Its path, if any, is put
// before that of every request. The error says what is wrong with the URL.
func New(origin string, o *Options) (*Transport, error) {
	u, err := url.Parse(origin)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the upstream %q is not a URL", origin)
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c":
		return nil, fmt.Errorf("the upstream %q has no scheme that dibs knows: it must be http, https or h2c, as in http://127.0.0.1:3000", origin)
	case u.Hostname() == "":
		return nil, fmt.Errorf("the upstream %q names no host", origin)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the upstream %s may have a host, a port and a path only", u.Redacted())
	}
	var options Options
	if o != nil {
		options = *o
	}
	t := &Transport{
		scheme: u.Scheme,
		host:   u.Host,
		prefix: strings.TrimSuffix(u.EscapedPath(), "/"),
		limit:  cmp.Or(options.ConnectTimeout, 5*time.Second),
		dialer: &net.Dialer{KeepAlive: 15 * time.Second},
	}
	idle := cmp.Or(options.IdleConns, 1024)
	t.base = &http.Transport{
		DialContext:           t.dial,
		MaxIdleConns:          idle,
		MaxIdleConnsPerHost:   idle,
		IdleConnTimeout:       cmp.Or(options.IdleTimeout, 90*time.Second),
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // bytes pass as they are
		WriteBufferSize:       8 << 10,
		ReadBufferSize:        8 << 10,
		Protocols:             new(http.Protocols),
	}
	switch u.Scheme {
	case "h2c":
		t.scheme = "http"
		t.base.Protocols.SetUnencryptedHTTP2(true)
		t.base.DialContext = t.dialPlain
	case "https":
		t.tls = new(tls.Config)
		if options.TLS != nil {
			t.tls = options.TLS.Clone()
		}
		t.tls.ServerName = cmp.Or(t.tls.ServerName, u.Hostname())
		t.tls.NextProtos = []string{"h2", "http/1.1"}
		t.base.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return t.dialTLS(ctx, network, addr, t.tls)
		}
		t.base.Protocols.SetHTTP1(true)
		t.base.Protocols.SetHTTP2(true)
	default:
		t.base.Protocols.SetHTTP1(true)
	}
	t.old = t.base
	if t.base.Protocols.HTTP2() || t.base.Protocols.UnencryptedHTTP2() {
		t.old = t.oldBase()
	}
	return t, nil
}

// oldBase returns a base that speaks HTTP/1 alone. Only that has requests for another
// protocol; net/http sees to it by itself for WebSocket, if it dials by itself.
func (t *Transport) oldBase() *http.Transport {
	old := t.base.Clone()
	old.Protocols = new(http.Protocols)
	old.Protocols.SetHTTP1(true)
	old.DialContext = t.dial
	if t.tls != nil {
		config := t.tls.Clone()
		config.NextProtos = []string{"http/1.1"}
		old.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return t.dialTLS(ctx, network, addr, config)
		}
	}
	return old
}

// baseOf returns what carries the request.
func (t *Transport) baseOf(req *http.Request) *http.Transport {
	if len(req.Header["Upgrade"]) > 0 {
		return t.old
	}
	return t.base
}

// CloseIdleConnections closes the connections that no request is using.
func (t *Transport) CloseIdleConnections() {
	t.base.CloseIdleConnections()
	t.old.CloseIdleConnections()
}

// attempts is how often a request may go out of which nothing had arrived.
const attempts = 3

// RoundTrip sends the request. Of the errors that it returns, those about the
// origin are a *Error.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.baseOf(req)
	if isSafe(req.Method) {
		for i := 1; ; i++ {
			res, err := (&passage{safe: true}).send(base, req, nil)
			switch {
			case err == nil:
				return res, nil
			case err != errStray || i == attempts || req.Body != nil && req.Body != http.NoBody:
				return nil, failure(req.Context(), HungUp, err)
			}
		}
	}
	body, err := newLastingBody(req)
	if err != nil {
		return nil, failure(req.Context(), Unreached, err)
	}
	for i := 1; ; i++ {
		p := new(passage)
		res, err := p.send(base, req, body)
		if err == nil {
			body.release()
			return res, nil
		}
		// What the peer says of a request that was sent (a GOAWAY, a refused stream)
		// changes nothing: an origin can say so of a request that it has run.
		kind := HungUp
		if !p.touched() {
			kind = Unreached
		}
		// A fresh connection that failed before anything was written will not
		// do better; one that had been idle may have died in the meantime.
		if kind != Unreached || !p.stale || i == attempts || req.Context().Err() != nil || !body.rewind() {
			body.release()
			return nil, failure(req.Context(), kind, err)
		}
	}
}

// isSafe reports whether requests of the method may be sent again.
func isSafe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// Kind says what became of a request that failed.
type Kind uint8

const (
	// Unreached means that nothing of the request reached the origin.
	Unreached Kind = iota + 1
	// HungUp means that the origin has seen the request, or a part of it, and did not
	// answer.
	HungUp
	// TimedOut means that the origin has seen the request, or a part of it, and did not
	// answer in time.
	TimedOut
)

// Error is what a request to the origin failed with. Its text is for logs: it
// has nothing of the request or of what the origin said.
type Error struct {
	Kind Kind
	Err  error
}

func (e *Error) Error() string {
	switch e.Kind {
	case Unreached:
		return "the origin could not be reached: " + reason(e.Err)
	case TimedOut:
		return "the origin did not answer in time"
	}
	return "the origin hung up: " + reason(e.Err)
}

// reason returns the text of errors that come from the system. net/http quotes
// the origin's bytes in its own.
func reason(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Error()
	}
	for _, plain := range []error{io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded, context.Canceled, errSentBefore, errHungUp, errNoAnswer, errStray} {
		if errors.Is(err, plain) {
			return plain.Error()
		}
	}
	return "it did not speak HTTP as expected"
}

// errNoAnswer stands for the error that an attempt to send again replaced.
var errNoAnswer = errors.New("the connection ended before the answer")

// Unwrap returns what net/http said.
func (e *Error) Unwrap() error { return e.Err }

func failure(ctx context.Context, kind Kind, err error) error {
	if errors.Is(err, errSentBefore) {
		err = errNoAnswer
	}
	timeout, ok := errors.AsType[net.Error](err)
	timedOut := ok && timeout.Timeout() || errors.Is(ctx.Err(), context.DeadlineExceeded)
	if kind == HungUp && timedOut {
		kind = TimedOut
	}
	return &Error{Kind: kind, Err: err}
}

// dial connects to an HTTP/1 origin.
func (t *Transport) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := t.dialPlain(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return newConn(c), nil
}

func (t *Transport) dialPlain(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	return t.dialer.DialContext(ctx, network, addr)
}

// dialTLS connects to an https origin. A connection on which HTTP/1 was agreed
// is watched above TLS, so that only requests count and no alerts; one on which
// HTTP/2 was agreed is handed to net/http as the *tls.Conn that it looks for.
func (t *Transport) dialTLS(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	plain, err := t.dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := tls.Client(plain, config)
	if err := c.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol == "h2" {
		return c, nil
	}
	return newConn(c), nil
}

var _ http.RoundTripper = (*Transport)(nil)
var _ io.Writer = (*conn)(nil)
