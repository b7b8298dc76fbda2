package upstream

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// rude is an HTTP/1 origin that behaves as a script says. It keeps every
// request that it has seen, as it was on the wire.
type rude struct {
	url string

	mu   sync.Mutex
	seen []string
}

// turn is what the origin does with one request on a connection. It returns
// whether the connection continues.
type turn func(c *net.TCPConn, r *bufio.Reader) bool

// newRude starts an origin that deals with the i-th connection's requests by
// scripts[i], one turn for each; the last script serves all others.
func newRude(t *testing.T, scripts ...[]turn) *rude {
	t.Helper()
	o := &rude{}
	o.url = "http://" + testkit.Serve(t, func(i int, c *net.TCPConn) { o.serve(c, scripts[min(i, len(scripts)-1)]) })
	return o
}

func (o *rude) serve(c *net.TCPConn, script []turn) {
	log := new(bytes.Buffer)
	r := bufio.NewReader(io.TeeReader(c, log))
	for _, turn := range script {
		if _, err := r.Peek(1); err != nil {
			return
		}
		goesOn := turn(c, r)
		o.mu.Lock()
		o.seen = append(o.seen, log.String()[:log.Len()-r.Buffered()])
		log.Next(log.Len() - r.Buffered())
		o.mu.Unlock()
		if !goesOn {
			return
		}
	}
}

// requests returns what was seen so far.
func (o *rude) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.seen...)
}

// readAll reads a whole request.
func readAll(r *bufio.Reader) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	io.Copy(io.Discard, req.Body)
}

// readHead reads a header block.
func readHead(r *bufio.Reader) {
	tp := textproto.NewReader(r)
	if _, err := tp.ReadLine(); err == nil {
		tp.ReadMIMEHeader()
	}
}

// say reads a request and writes this.
func say(format string, args ...any) turn {
	return func(c *net.TCPConn, r *bufio.Reader) bool {
		readAll(r)
		fmt.Fprintf(c, format, args...)
		return true
	}
}

// sayAndLeave reads a request, writes this and closes.
func sayAndLeave(text string) turn {
	return func(c *net.TCPConn, r *bufio.Reader) bool {
		readAll(r)
		io.WriteString(c, text)
		return false
	}
}

// reset reads a request, writes this and resets the connection.
func reset(text string) turn {
	return func(c *net.TCPConn, r *bufio.Reader) bool {
		readAll(r)
		io.WriteString(c, text)
		c.SetLinger(0)
		return false
	}
}

// leaveInBody closes after the header and n bytes of the body.
func leaveInBody(n int64) turn {
	return func(c *net.TCPConn, r *bufio.Reader) bool {
		readHead(r)
		io.CopyN(io.Discard, r, n)
		c.SetLinger(0)
		return false
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// request is a guarded request as the proxy sends it.
func request(t *testing.T, tr *Transport, method, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = struct{ io.Reader }{strings.NewReader(body)}
	}
	req := testkit.Request(t.Context(), t, method, "http://example.com/charges", r)
	req.ContentLength = int64(len(body))
	req.Header.Set("Idempotency-Key", `"k"`)
	req.Header.Set("X-Idempotency-Key", `"k"`)
	req.RequestURI = "/charges"
	tr.Direct(req, req)
	req.RequestURI = ""
	return req
}

// newTransport returns a transport to the origin.
func newTransport(t *testing.T, origin string, o *Options) *Transport {
	t.Helper()
	tr, err := New(origin, o)
	testkit.Must(t, err)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func roundTrip(tr *Transport, req *http.Request) (int, string, error) {
	res, err := tr.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	return answerOf(res)
}

func answerOf(res *http.Response) (int, string, error) {
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}
