//go:build unix

package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestSeenOnce: whatever the origin does after it has seen a request, also on a
// connection that was kept alive, it does not see it again.
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
					origin := newRude(t, script, []turn{say(ok)})
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
					waitFor(t, func() bool { return len(origin.requests()) >= len(script) })
					// A second sight would come over a second connection: give it
					// the whole time that a further request takes.
					if status, _, err := roundTrip(tr, request(t, tr, "GET", "")); status != 200 || err != nil {
						t.Fatalf("the last request: %d %v", status, err)
					}
					waitFor(t, func() bool { return len(origin.requests()) >= len(script)+1 })
					if seen := origin.requests(); len(seen) != len(script)+1 {
						t.Errorf("the origin saw %d requests: %q", len(seen), seen)
					}
				})
			}
		}
	}
}

// waitFor polls for what happens on the other side of a connection.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(failpoint.Limit)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v in vain", failpoint.Limit)
		}
	}
}

// TestNetHTTPSendsAgain shows the trap that this package is about: without the
// wall, the same request is seen twice. Should this fail one day, net/http has
// changed its mind.
func TestNetHTTPSendsAgain(t *testing.T) {
	origin := newRude(t, []turn{say(ok), sayAndLeave("")}, []turn{say(ok)})
	tr := newTransport(t, origin.url, nil)
	for range 2 {
		// The connection has to be free again before it can be used again.
		free := make(chan struct{}, 1)
		r := request(t, tr, "POST", "")
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			PutIdleConn: func(error) { free <- struct{}{} },
		}))
		res, err := tr.base.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		<-free
	}
	// Of two requests, the origin sees the second one twice.
	waitFor(t, func() bool { return len(origin.requests()) == 3 })
}

// TestHungUpInRequestBody: an origin that leaves in the middle of the request's
// body has seen the request.
func TestHungUpInRequestBody(t *testing.T) {
	body := strings.Repeat("x", 4<<20)
	origin := newRude(t, []turn{leaveInBody(1000)})
	tr := newTransport(t, origin.url, nil)
	_, _, err := roundTrip(tr, request(t, tr, "POST", body))
	if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != HungUp {
		t.Errorf("the error is %v", err)
	}
	waitFor(t, func() bool { return len(origin.requests()) == 1 })
}

// TestEarlyAnswer: an answer that comes before the request's body has ended is
// the answer.
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

// TestEarlyAnswerThenClosed: an answer counts that came before the origin closed the
// connection without having read the request. Without one it has hung up.
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

// TestUnreached: a request of which the origin cannot have seen a byte.
func TestUnreached(t *testing.T) {
	nobody := servertest.Addr(t)
	for _, origin := range []string{"http://" + nobody, "https://" + nobody, "h2c://" + nobody} {
		for _, body := range []string{"", "amount=7"} {
			tr := newTransport(t, origin, nil)
			_, _, err := roundTrip(tr, request(t, tr, "POST", body))
			if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != Unreached {
				t.Errorf("%s: the error is %v", origin, err)
			}
		}
	}
}

// mortal is a connection that can die: it then takes no byte any more although
// it looks alive.
type mortal struct {
	net.Conn
	dead atomic.Bool
}

func (c *mortal) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(p)
}

// TestStale: a kept-alive connection that takes no byte any more is replaced,
// because the origin has seen nothing: no spurious 502 after its restart.
func TestStale(t *testing.T) {
	for _, body := range []string{"", "amount=7"} {
		t.Run("body "+body, func(t *testing.T) {
			origin := newRude(t, []turn{say(ok), say(ok)})
			tr := newTransport(t, origin.url, nil)
			var last *mortal
			dial := tr.base.DialContext
			tr.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				last = &mortal{Conn: c.(*conn).Conn}
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
			waitFor(t, func() bool { return slices.ContainsFunc(origin.requests(), whole) })
			waitFor(t, func() bool { return len(origin.requests()) >= 2 })
			if seen := origin.requests(); len(seen) != 2 {
				t.Errorf("the origin saw %q", seen)
			}
		})
	}
}

// TestTimedOut: an origin that has seen the request and does not answer.
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
	waitFor(t, func() bool { return len(origin.requests()) == 2 })
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
			waitFor(t, func() bool { return len(origin.requests()) >= 1 })
			seen := origin.requests()
			if len(seen) != 1 || !strings.Contains(seen[0], test.want) || strings.Contains(seen[0], test.not) {
				t.Errorf("the origin saw %q; want %q and no %q", seen, test.want, test.not)
			}
		})
	}
}

// TestHTTP2SeenOnce: over HTTP/2 as well, whatever the origin resets the stream
// with.
func TestHTTP2SeenOnce(t *testing.T) {
	for _, scheme := range []string{"https", "h2c"} {
		for _, body := range []string{"", "amount=7"} {
			t.Run(scheme+" "+body, func(t *testing.T) {
				var seen atomic.Int64
				origin := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.ProtoMajor != 2 {
						t.Errorf("the origin was spoken to in %s", r.Proto)
					}
					io.Copy(io.Discard, r.Body)
					if r.Method == "GET" {
						return
					}
					seen.Add(1)
					panic(http.ErrAbortHandler)
				}))
				tr := startHTTP2(t, origin, scheme)
				if status, _, err := roundTrip(tr, request(t, tr, "GET", "")); status != 200 {
					t.Fatal(err)
				}
				_, _, err := roundTrip(tr, request(t, tr, "POST", body))
				if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != HungUp {
					t.Errorf("the error is %v", err)
				}
				if n := seen.Load(); n != 1 {
					t.Errorf("the origin saw the request %d times", n)
				}
			})
		}
	}
}

// startHTTP2 starts an origin that speaks HTTP/2 and returns a transport to it.
func startHTTP2(t *testing.T, origin *httptest.Server, scheme string) *Transport {
	t.Helper()
	t.Cleanup(origin.Close)
	if scheme == "h2c" {
		origin.Config.Protocols = new(http.Protocols)
		origin.Config.Protocols.SetHTTP1(true)
		origin.Config.Protocols.SetUnencryptedHTTP2(true)
		origin.Start()
		return newTransport(t, "h2c://"+origin.Listener.Addr().String(), nil)
	}
	origin.EnableHTTP2 = true
	origin.StartTLS()
	tls := origin.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	tls.ServerName = "example.com"
	return newTransport(t, origin.URL, &Options{TLS: tls})
}

// TestUpgradeIsHTTP1: a request for another protocol goes out in HTTP/1, which alone has
// such, also to an origin that speaks HTTP/2 otherwise.
func TestUpgradeIsHTTP1(t *testing.T) {
	for _, scheme := range []string{"https", "h2c"} {
		t.Run(scheme, func(t *testing.T) {
			origin := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Upgrade") == "" {
					io.WriteString(w, r.Proto)
					return
				}
				c, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Errorf("%s: %v", r.Proto, err)
					return
				}
				defer c.Close()
				io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				io.Copy(c, rw)
			}))
			tr := startHTTP2(t, origin, scheme)
			if status, body, err := roundTrip(tr, request(t, tr, "GET", "")); status != 200 || body != "HTTP/2.0" {
				t.Fatalf("without an upgrade: %d %q %v", status, body, err)
			}
			for _, protocol := range []string{"echo", "websocket"} {
				req := request(t, tr, "GET", "")
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", protocol)
				res, err := tr.RoundTrip(req)
				if err != nil {
					t.Fatalf("%s: %v", protocol, err)
				}
				defer res.Body.Close()
				rw, ok := res.Body.(io.ReadWriter)
				if res.StatusCode != 101 || !ok {
					t.Fatalf("%s: the origin answered %d", protocol, res.StatusCode)
				}
				got := make([]byte, 5)
				if _, err := io.WriteString(rw, "there"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(rw, got); err != nil || string(got) != "there" {
					t.Errorf("%s: %q came back, %v", protocol, got, err)
				}
			}
		})
	}
}
