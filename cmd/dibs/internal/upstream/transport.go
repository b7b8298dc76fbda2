// Package upstream sends requests to the origin. A request that may have an effect is sent
// once.
//
// net/http's Transport sends a request again if a kept-alive connection breaks and it takes
// the request for replayable: over HTTP/1 a request without a body that has an
// Idempotency-Key, and over HTTP/2 also a request whose stream the origin reset with
// PROTOCOL_ERROR. A proxy that promises one run must do neither (RFC 9110, section 9.2.2).
// The Transport here sends a request again only if no part of it reached the origin. The
// error of a failed request says whether a part did.
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
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Options configure a Transport. nil means the defaults.
type Options struct {
	// ConnectTimeout bounds connecting, TLS included. Default: 5 s.
	ConnectTimeout time.Duration
	// TLS configures https origins. Default: the system's roots.
	TLS *tls.Config
}

// idleConns is how many idle connections a Transport keeps, and idleTimeout how long.
const (
	idleConns   = 1024
	idleTimeout = 90 * time.Second
)

// Transport is the http.RoundTripper to one origin.
type Transport struct {
	scheme string // of the requests that net/http sees: http or https
	host   string
	prefix string // is put before the path of every request
	socket string // the path of the origin's Unix socket, or ""
	base   *http.Transport
	old    *http.Transport // speaks HTTP/1 only, for requests to switch protocols
	dialer *net.Dialer
	tls    *tls.Config
	limit  time.Duration
}

// isHostPort matches HOST:PORT, with a path or without. It matches no text with a password.
var isHostPort = regexp.MustCompile(`^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]+(/[^@]*)?$`)

// New returns a Transport to the origin at the URL: http://, https:// (which negotiates
// HTTP/2) or h2c:// (HTTP/2 without TLS). The URL's path, if any, is put before the path of
// every request. unix:PATH is a Unix socket, over which it speaks HTTP/1.1. The error says what is wrong
// with the URL.
func New(origin string, o *Options) (*Transport, error) {
	socket, isSocket := strings.CutPrefix(origin, "unix:")
	if isSocket {
		origin = "http://localhost"
	} else {
		socket = ""
	}
	u, err := url.Parse(origin)
	switch {
	case isHostPort.MatchString(origin):
		return nil, fmt.Errorf("the upstream has no scheme; did you mean http://%s?", origin)
	case isSocket && !strings.HasPrefix(strings.TrimPrefix(socket, "//"), "/"):
		return nil, errors.New("the path of the upstream's socket must be absolute, as in unix:/run/app.sock")
	case err != nil:
		return nil, errors.New("the upstream is not a URL such as http://127.0.0.1:3000") // it is not quoted, because it may have a password
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c":
		return nil, fmt.Errorf("the upstream has an unknown scheme, %q: it must be http, https or h2c, as in http://127.0.0.1:3000, or unix, as in unix:/run/app.sock", u.Scheme)
	case u.Hostname() == "":
		return nil, fmt.Errorf("the upstream %q names no host, as in http://127.0.0.1:3000", u.Redacted())
	case u.Port() != "" && !isPort(u.Port()):
		return nil, fmt.Errorf("the upstream %q has the port %s; ports are 1 to 65535", u.Redacted(), u.Port())
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the upstream %s can have only a host, a port and a path", u.Redacted())
	}
	var options Options
	if o != nil {
		options = *o
	}
	t := &Transport{
		scheme: u.Scheme,
		host:   u.Host,
		prefix: strings.TrimSuffix(u.EscapedPath(), "/"),
		socket: strings.TrimPrefix(socket, "//"),
		limit:  cmp.Or(options.ConnectTimeout, 5*time.Second),
		dialer: &net.Dialer{KeepAlive: 15 * time.Second},
	}
	t.base = &http.Transport{
		DialContext:           t.dial,
		MaxIdleConns:          idleConns,
		MaxIdleConnsPerHost:   idleConns,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
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

// isPort reports whether an origin can have the port.
func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// oldBase returns a base that speaks HTTP/1 only, because a request cannot switch protocols
// over HTTP/2.
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

// baseOf returns the http.Transport for the request.
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

// attempts bounds how often a request is sent while no part of it reaches the origin.
const attempts = 3

// RoundTrip sends the request. Its errors are *Error.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.baseOf(req)
	if isSafe(req.Method) {
		for i := 1; ; i++ {
			try := &trip{safe: true}
			res, err := try.send(base, req, nil)
			switch {
			case err == nil:
				return res, nil
			case !try.got:
				return nil, failure(req.Context(), Unreached, err)
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
		try := new(trip)
		res, err := try.send(base, req, body)
		if err == nil {
			body.release()
			return res, nil
		}
		// A GOAWAY or a refused stream changes nothing, because an origin can send it for a
		// request that it has run.
		kind := HungUp
		if !try.touched() {
			kind = Unreached
		}
		// Only a connection that had been idle may fail where a new one succeeds.
		if kind != Unreached || !try.stale || i == attempts || req.Context().Err() != nil || !body.rewind() {
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

// Kind says how a request failed.
type Kind uint8

const (
	// Unreached: no part of the request reached the origin.
	Unreached Kind = iota + 1
	// HungUp: a part of the request may have reached the origin, which did not answer.
	HungUp
	// TimedOut: a part of the request may have reached the origin, which did not answer in
	// time.
	TimedOut
)

// Error is the error of a request to the origin. Its text can be logged, because it has
// nothing of the request or of the origin's answer.
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

// reason returns the text of errors of the system. Errors of net/http are not shown, because
// they quote the origin's bytes.
func reason(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Error()
	}
	if c, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return c.Error()
	}
	for _, plain := range []error{io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded, context.Canceled, errSentBefore, errHungUp, errNoAnswer, errStray} {
		if errors.Is(err, plain) {
			return plain.Error()
		}
	}
	return "it did not speak HTTP as expected"
}

// errNoAnswer replaces errSentBefore, because net/http has lost the first error.
var errNoAnswer = errors.New("the connection ended before the answer")

// Unwrap returns the error of net/http.
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
	if t.socket != "" {
		network, addr = "unix", t.socket
	}
	return t.dialer.DialContext(ctx, network, addr)
}

// dialTLS connects to an https origin. On HTTP/1, conn is above TLS, so that it counts
// requests only. On HTTP/2, net/http needs the *tls.Conn.
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
