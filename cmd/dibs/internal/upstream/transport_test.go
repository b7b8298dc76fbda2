//go:build unix

package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestSeenOnce: whatever the origin does after it has got a request, it does not get it again,
// also on a kept-alive connection.
func TestSeenOnce(t *testing.T) {
	tests := []struct {
		name string
		turn turn
		kind Kind // 0: there was an answer
		cut  bool // the answer's body is cut off
	}{
		{name: "closes after reading the request", turn: sayAndLeave(""), kind: HungUp},
		{name: "resets after reading the request", turn: reset(""), kind: HungUp},
		{name: "closes inside the status line", turn: sayAndLeave("HTTP/1.1 2"), kind: HungUp},
		{name: "closes inside the header", turn: sayAndLeave("HTTP/1.1 200 OK\r\nContent-Le"), kind: HungUp},
		{name: "says 100 and closes", turn: sayAndLeave("HTTP/1.1 100 Continue\r\n\r\n"), kind: HungUp},
		{name: "says 103 and resets", turn: reset("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), kind: HungUp},
		{name: "speaks nonsense", turn: sayAndLeave("220 smtp.example.com ESMTP\r\n"), kind: HungUp},
		{name: "closes inside a body of known length", turn: sayAndLeave("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), cut: true},
		{name: "closes before the last chunk", turn: sayAndLeave("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"), cut: true},
		{name: "resets inside a chunk", turn: reset("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), cut: true},
		{name: "resets inside a body that the end of the connection ends", turn: reset("HTTP/1.1 200 OK\r\n\r\nab"), cut: true},
	}
	methods := []struct{ method, body string }{
		{"POST", ""}, {"POST", "amount=7"}, {"DELETE", ""}, {"PATCH", "{}"}, {"CHARGE", ""},
	}
	for _, test := range tests {
		for _, m := range methods {
			for where, before := range map[string][]turn{"a new connection": nil, "a kept one": {say(ok)}} {
				t.Run(fmt.Sprintf("%s/%s %s on %s", test.name, m.method, m.body, where), func(t *testing.T) {
					script := append(slices.Clone(before), test.turn)
					var turns atomic.Int64
					// The script counts the requests of all connections, because net/http does
					// not keep a connection if it takes too long to note that it sent the request.
					next := func(c *net.TCPConn, r *bufio.Reader) bool {
						if i := int(turns.Add(1)); i <= len(script) {
							return script[i-1](c, r)
						}
						return say(ok)(c, r)
					}
					origin := newRude(t, slices.Repeat([]turn{next}, 9))
					tr := newTransport(t, origin.url, nil)
					if len(before) > 0 {
						if status, body, err := roundTrip(tr, request(t, tr, "POST", "warm up")); status != 200 || body != "ok" || err != nil {
							t.Fatalf("the first request: %d %q %v", status, body, err)
						}
					}
					_, _, err := roundTrip(tr, request(t, tr, m.method, m.body))
					failed, isOurs := errors.AsType[*Error](err)
					switch {
					case test.cut && (err == nil || isOurs):
						t.Errorf("the body's error is %v", err)
					case !test.cut && (!isOurs || failed.Kind != test.kind):
						t.Errorf("the error is %#v; want kind %d", err, test.kind)
					case !test.cut && strings.Contains(err.Error(), "smtp"):
						t.Errorf("the error quotes the origin: %v", err)
					}
					testkit.Eventually(t, "the requests arrive", func() bool { return len(origin.requests()) >= len(script) })
					// A second sight would come over a second connection: give it
					// the whole time that a further request takes.
					if status, _, err := roundTrip(tr, request(t, tr, "GET", "")); status != 200 || err != nil {
						t.Fatalf("the last request: %d %v", status, err)
					}
					testkit.Eventually(t, "the requests arrive", func() bool { return len(origin.requests()) >= len(script)+1 })
					if seen := origin.requests(); len(seen) != len(script)+1 {
						t.Errorf("the origin saw %d requests: %q", len(seen), seen)
					}
				})
			}
		}
	}
}

// TestHungUpInRequestBody: an origin that hangs up in the request's body has got the request.
func TestHungUpInRequestBody(t *testing.T) {
	body := strings.Repeat("x", 4<<20)
	origin := newRude(t, []turn{leaveInBody(1000)})
	tr := newTransport(t, origin.url, nil)
	_, _, err := roundTrip(tr, request(t, tr, "POST", body))
	if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != HungUp {
		t.Errorf("the error is %v", err)
	}
	testkit.Eventually(t, "the requests arrive", func() bool { return len(origin.requests()) == 1 })
}

// TestEarlyAnswer: an answer before the end of the request's body counts.
func TestEarlyAnswer(t *testing.T) {
	early := func(c *net.TCPConn, r *bufio.Reader) bool {
		readHead(r)
		io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno!")
		io.Copy(io.Discard, r)
		return false
	}
	origin := newRude(t, []turn{early})
	tr := newTransport(t, origin.url, nil)
	more, sent := io.Pipe()
	defer sent.Close()
	req := request(t, tr, "POST", "")
	req.Body, req.ContentLength = more, -1
	go sent.Write([]byte("a beginning"))
	status, body, err := roundTrip(tr, req)
	if status != 413 || body != "no!" || err != nil {
		t.Errorf("got %d %q %v", status, body, err)
	}
}

// leaving is the connection to an origin that answers when it has the beginning of a
// request, and closes the connection with the rest unread.
type leaving struct {
	net.Conn
	answer io.Reader
	writes int
	left   chan struct{}
}

func (c *leaving) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 2 {
		close(c.left)
	}
	if c.writes > 1 {
		return 0, errors.New("broken pipe")
	}
	return len(p), nil
}

func (c *leaving) Read(p []byte) (int, error) {
	<-c.left
	return c.answer.Read(p)
}

// TestEarlyAnswerThenClosed: an answer counts although the origin closed the connection before
// it had read the request.
func TestEarlyAnswerThenClosed(t *testing.T) {
	for answer, want := range map[string]int{"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno!": 413, "": 0, "HTTP/1.1 2": 0} {
		tr := newTransport(t, "http://origin.test", nil)
		tr.base.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, _ := net.Pipe()
			return newConn(&leaving{Conn: ours, answer: strings.NewReader(answer), left: make(chan struct{})}), nil
		}
		status, _, err := roundTrip(tr, request(t, tr, "POST", strings.Repeat("x", 1<<20)))
		failed, _ := errors.AsType[*Error](err)
		if status != want || (want == 0) != (failed != nil && failed.Kind == HungUp) {
			t.Errorf("after %q: got %d %v", answer, status, err)
		}
	}
}

// TestUnreached: no byte of the request reached the origin.
func TestUnreached(t *testing.T) {
	free := servertest.Addr(t)
	for _, origin := range []string{"http://" + free, "https://" + free, "h2c://" + free} {
		for _, r := range [][2]string{{"POST", ""}, {"POST", "amount=7"}, {"GET", ""}} {
			tr := newTransport(t, origin, nil)
			_, _, err := roundTrip(tr, request(t, tr, r[0], r[1]))
			if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != Unreached {
				t.Errorf("%s %s: the error is %v", r[0], origin, err)
			}
		}
	}
}

// TestCertificate: the error says what is wrong with the origin's certificate.
func TestCertificate(t *testing.T) {
	origin := httptest.NewUnstartedServer(http.NotFoundHandler())
	origin.Config.ErrorLog = log.New(io.Discard, "", 0)
	origin.StartTLS()
	t.Cleanup(origin.Close)
	tr := newTransport(t, origin.URL, nil)
	_, _, err := roundTrip(tr, request(t, tr, "POST", ""))
	if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != Unreached || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("the error is %v", err)
	}
}

// closable is a connection that can fail at the next write, without an earlier sign.
type closable struct {
	net.Conn
	dead atomic.Bool
}

func (c *closable) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(p)
}

// TestStale: a broken kept-alive connection is replaced, because no byte reached the origin.
func TestStale(t *testing.T) {
	for _, body := range []string{"", "amount=7"} {
		t.Run("body "+body, func(t *testing.T) {
			origin := newRude(t, []turn{say(ok), say(ok)})
			tr := newTransport(t, origin.url, nil)
			var last *closable
			dial := tr.base.DialContext
			tr.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				last = &closable{Conn: c.(*conn).Conn}
				return newConn(last), nil
			}
			if status, _, err := roundTrip(tr, request(t, tr, "POST", "x")); status != 200 {
				t.Fatal(err)
			}
			last.dead.Store(true)
			req := request(t, tr, "POST", body)
			if body != "" {
				req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
			}
			status, answer, err := roundTrip(tr, req)
			if status != 200 || answer != "ok" || err != nil {
				t.Fatalf("got %d %q %v", status, answer, err)
			}
			whole := func(request string) bool { return strings.HasSuffix(request, "\r\n\r\n"+body) }
			testkit.Eventually(t, "a whole request arrives", func() bool { return slices.ContainsFunc(origin.requests(), whole) })
			testkit.Eventually(t, "the requests arrive", func() bool { return len(origin.requests()) >= 2 })
			if seen := origin.requests(); len(seen) != 2 {
				t.Errorf("the origin saw %q", seen)
			}
		})
	}
}

// TestTimedOut: the origin gets the request and does not answer.
func TestTimedOut(t *testing.T) {
	seen := make(chan context.CancelFunc, 1) // what then ends the time
	origin := newRude(t, []turn{func(c *net.TCPConn, r *bufio.Reader) bool {
		readAll(r)
		(<-seen)()
		io.Copy(io.Discard, r) // until the transport leaves
		return false
	}})
	tr := newTransport(t, origin.url, nil)
	for _, body := range []string{"", "amount=7"} {
		ctx, cancel := context.WithCancel(t.Context())
		seen <- cancel
		_, _, err := roundTrip(tr, request(t, tr, "POST", body).WithContext(endsWith{ctx, context.DeadlineExceeded}))
		cancel()
		if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != TimedOut {
			t.Errorf("the error is %v", err)
		}
	}
	testkit.Eventually(t, "the requests arrive", func() bool { return len(origin.requests()) == 2 })
}

// endsWith is a context that ends with an error of its own, as that of a guarded
// request does.
type endsWith struct {
	context.Context
	err error
}

func (c endsWith) Err() error {
	if c.Context.Err() == nil {
		return nil
	}
	return c.err
}

// TestFraming: a request without a body stays one without a body.
func TestFraming(t *testing.T) {
	tests := []struct{ method, body, want, not string }{
		{"POST", "", "\r\nContent-Length: 0\r\n", "Transfer-Encoding"},
		{"DELETE", "", "DELETE /charges HTTP/1.1\r\n", "Transfer-Encoding"},
		{"PUT", "", "\r\nContent-Length: 0\r\n", "Transfer-Encoding"},
		{"POST", "abc", "\r\nContent-Length: 3\r\n", "Transfer-Encoding"},
		{"POST", "abc", "\r\nIdempotency-Key: \"k\"\r\n", "Accept-Encoding"},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.body, func(t *testing.T) {
			origin := newRude(t, []turn{say(ok)})
			tr := newTransport(t, origin.url, nil)
			if status, _, err := roundTrip(tr, request(t, tr, test.method, test.body)); status != 200 {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the requests arrive", func() bool { return len(origin.requests()) >= 1 })
			seen := origin.requests()
			if len(seen) != 1 || !strings.Contains(seen[0], test.want) || strings.Contains(seen[0], test.not) {
				t.Errorf("the origin saw %q; want %q and no %q", seen, test.want, test.not)
			}
		})
	}
}

// TestStray: bytes after an answer are not the answer to the next request.
func TestStray(t *testing.T) {
	t.Parallel()
	const stray = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
	for name, said := range map[string]string{
		"after a 204":             "HTTP/1.1 204 No Content\r\n\r\n" + stray,
		"after a body":            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n" + stray,
		"a part of its header":    "HTTP/1.1 204 No Content\r\n\r\n" + stray[:20],
		"what is not HTTP at all": "HTTP/1.1 204 No Content\r\n\r\n" + "\x00",
		"an informational answer": "HTTP/1.1 204 No Content\r\n\r\n" + "HTTP/1.1 103 Early Hints\r\n\r\n" + stray,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			origin := newRude(t, slices.Repeat([]turn{say("%s", said)}, 1000))
			tr := newTransport(t, origin.url, nil)
			for i := range 300 {
				method := []string{http.MethodPost, http.MethodGet, http.MethodDelete}[i%3]
				if status, text, err := roundTrip(tr, request(t, tr, method, "")); status != http.StatusNoContent || err != nil {
					t.Fatalf("request %d got %d %q %v", i, status, text, err)
				}
			}
			testkit.Eventually(t, "the requests arrive", func() bool { return len(origin.requests()) >= 300 })
			if n := len(origin.requests()); n != 300 {
				t.Errorf("the origin saw %d requests", n)
			}
		})
	}
}
