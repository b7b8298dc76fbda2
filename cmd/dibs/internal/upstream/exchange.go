package upstream

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
)

// Exchanges reports whether Exchange can be used: the origin speaks HTTP/1
// without TLS, and the system can tell that it has closed a connection.
func (t *Transport) Exchanges() bool { return t.addr != "" && tells }

// Exchange is RoundTrip for a request that is there as a whole: message is all
// of it, as it goes over the wire. r is where it came from: its context bounds
// the exchange, and its method says how the answer is framed. inform is called
// with each informational answer. The message is not kept.
//
// The caller's own goroutine writes the message, in one piece, and reads the
// answer. net/http has two goroutines on each connection for that, which the
// caller talks to: to send a small request costs half as much here. And there is
// no need for a wall: nobody sends again but the loop below.
//
// Of the errors that it returns, those about the origin are a *Error.
func (t *Transport) Exchange(r *http.Request, message []byte, inform func(status int, h http.Header)) (*http.Response, error) {
	ctx := r.Context()
	for i := 1; ; i++ {
		l, err := t.line(ctx)
		if err != nil {
			return nil, failure(ctx, Unreached, err)
		}
		x := &exchange{request: r, lines: &t.lines, line: l, unwatch: context.AfterFunc(ctx, l.interrupt)}
		n, err := l.Write(message)
		if err == nil {
			return x.answer(inform)
		}
		x.end(false)
		switch {
		case n > 0:
			return nil, failure(ctx, HungUp, x.cause(err))
		case !l.used, i == attempts, ctx.Err() != nil:
			// A fresh connection that took nothing will not do better; one that
			// had been idle may have died in the meantime.
			return nil, failure(ctx, Unreached, x.cause(err))
		}
	}
}

// exchange is one request and its answer on a line. It is the answer's body.
type exchange struct {
	request *http.Request
	lines   *lines
	line    *line // nil when it is over
	unwatch func() bool
	body    io.Reader
	keep    bool // the line can have another exchange
}

// maxHead is how many bytes the header of an answer may have, together with the
// informational answers before it: as many as net/http takes.
const maxHead = 10 << 20

var (
	errLongHead = errors.New("the answer's header is too long")
	errNoFinal  = errors.New("the answer has a status that nobody asked for")
)

// answer reads what the origin says, up to the body.
func (x *exchange) answer(inform func(int, http.Header)) (*http.Response, error) {
	defer func() {
		if x.body == nil {
			x.end(false)
		}
	}()
	x.line.left = maxHead
	for {
		res, err := http.ReadResponse(x.line.r, x.request)
		switch {
		case err != nil:
			return nil, failure(x.request.Context(), HungUp, x.cause(err))
		case res.StatusCode < 100 || res.StatusCode == http.StatusSwitchingProtocols:
			return nil, failure(x.request.Context(), HungUp, errNoFinal)
		case res.StatusCode < 200:
			inform(res.StatusCode, res.Header)
			continue
		}
		x.line.left = math.MaxInt64
		x.keep = !res.Close
		x.body, res.Body = res.Body, x
		return res, nil
	}
}

// cause returns why the exchange ended with err: because its context has ended,
// if it has.
func (x *exchange) cause(err error) error { return cmp.Or(x.request.Context().Err(), err) }

// Read reads the answer's body. At its end the line is free.
func (x *exchange) Read(p []byte) (int, error) {
	if x.line == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := x.body.Read(p)
	switch err {
	case nil:
	case io.EOF:
		x.end(true)
	default:
		err = x.cause(err)
	}
	return n, err
}

// Close ends the exchange. If the body was not read to its end, the line goes
// with it.
func (x *exchange) Close() error {
	if x.line != nil {
		x.end(false)
	}
	return nil
}

// end gives the line back, if it can have another exchange.
func (x *exchange) end(whole bool) {
	l := x.line
	x.line = nil
	// What the origin said beyond its answer belongs to nobody.
	if !x.unwatch() || !whole || !x.keep || l.r.Buffered() > 0 {
		_ = l.Close() // nothing more is expected from it
		return
	}
	x.lines.put(l)
}

// line is a connection that has one exchange after the other.
type line struct {
	net.Conn
	r    *bufio.Reader // of the line itself
	left int64         // bytes that it may read
	used bool          // it has had an exchange
	idle bool          // it has had none for a while; see lines.sweep
}

// Read reads from the connection.
func (l *line) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errLongHead
	}
	n, err := l.Conn.Read(p)
	l.left -= int64(n)
	return n, err
}

// interrupt ends what is under way on the line, and its use.
func (l *line) interrupt() { _ = l.SetDeadline(past) }

// line returns a line that the origin has not closed, a new one if there is none.
func (t *Transport) line(ctx context.Context) (*line, error) {
	for {
		l := t.lines.take()
		switch {
		case l == nil:
			c, err := t.dialPlain(ctx, "tcp", t.addr)
			if err != nil {
				return nil, err
			}
			l = &line{Conn: c}
			l.r = bufio.NewReaderSize(l, 4<<10)
			return l, nil
		case !hungUp(l.Conn):
			return l, nil
		}
		// The kernel would take its bytes, and nobody could tell that they
		// never arrived.
		_ = l.Close()
	}
}
