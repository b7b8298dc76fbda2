package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// running is a proxy that serves.
type running struct {
	url, admin string
	logs       *testkit.Output
	server     *Server
	reload     chan os.Signal
	stop       func()
}

// start starts a proxy over a store in memory, before an origin.
func start(t *testing.T, origin string, text string, flags ...string) *running {
	t.Helper()
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	return startOn(t, store, origin, text, flags...)
}

// closing is a store that the proxy's end closes.
type closing interface {
	dibs.Store
	Close() error
}

// startOn is start over this store.
func startOn(t *testing.T, store closing, origin string, text string, flags ...string) *running {
	t.Helper()
	c, err := load(t, text, append([]string{"--upstream", origin}, flags...)...)
	testkit.Must(t, err)
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	r := &running{logs: new(testkit.Output), reload: make(chan os.Signal)}
	s, err := New(c, client, &Admin{Metrics: noMetrics, Observe: func(context.Context, idempotency.Event) {}, Store: store, Traffic: new(page.Traffic)}, c.Logger(r.logs))
	testkit.Must(t, err)
	r.server = s
	l, admin := testkit.Listen(t), testkit.Listen(t)
	r.url, r.admin = "http://"+l.Addr().String(), "http://"+admin.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, admin, r.reload) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		client.Close()
		store.Close()
	})
	t.Cleanup(r.stop)
	return r
}

func noMetrics(*string) http.Handler { return http.NotFoundHandler() }

// origin starts an origin with a handler.
func origin(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// raw sends bytes and returns the connection.
func raw(t *testing.T, url, text string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	testkit.Must(t, err)
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// answerOf reads an answer to a raw request.
func answerOf(t *testing.T, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	testkit.Must(t, err)
	body, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	return res, string(body)
}

// send sends a raw request on a connection of its own and reads the answer.
func send(t *testing.T, url, text string) (*http.Response, string) {
	t.Helper()
	c, r := raw(t, url, text)
	defer c.Close()
	return answerOf(t, r)
}

// bareOrigin answers each connection's requests with the same bytes and keeps
// what it saw: no net/http on its side tidies anything up.
type bareOrigin struct {
	url string
	mu  sync.Mutex
	got []string
}

func newBareOrigin(t *testing.T, answer string) *bareOrigin {
	t.Helper()
	o := &bareOrigin{}
	o.url = "http://" + testkit.Serve(t, func(_ int, c *net.TCPConn) { o.serve(c, answer) })
	return o
}

func (o *bareOrigin) serve(c net.Conn, answer string) {
	var log bytes.Buffer
	r := bufio.NewReader(io.TeeReader(c, &log))
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		o.mu.Lock()
		o.got = append(o.got, log.String())
		o.mu.Unlock()
		log.Reset()
		io.WriteString(c, answer)
	}
}

// last returns the last request, as it was on the wire.
func (o *bareOrigin) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.got) == 0 {
		return ""
	}
	return o.got[len(o.got)-1]
}

// TestRequestFields: what the origin gets of a request's fields.
func TestRequestFields(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := start(t, o.url, "")
	forwarding := start(t, o.url, "", "--forwarded", "--trusted-proxies=10.0.0.0/8,::1")
	behind := start(t, o.url, "", "--trusted-proxies=127.0.0.0/8") // which sets forwarded
	tests := []struct {
		name   string
		to     *running
		fields string
		has    []string
		hasNot []string
	}{
		{name: "nothing is added but the fence and the ID", to: p, fields: "Idempotency-Key: a1\r\n",
			has: []string{"\r\nHost: shop.example.com:81\r\n", "\r\nDibs-Fence: ", "\r\nX-Request-Id: ", "\r\nIdempotency-Key: a1\r\n"}, hasNot: []string{"User-Agent", "X-Forwarded", "Accept-Encoding", "Via", "Forwarded"}},
		{name: "no fence where there is no lease", to: p, fields: "X-A: b\r\n", has: []string{"\r\nX-A: b\r\n"}, hasNot: []string{"Dibs-Fence"}},
		{name: "an outsider's fence, marker and control are dropped", to: p,
			fields: "Idempotency-Key: a2\r\nDibs-Fence: 7\r\nIdempotent-Replayed: true\r\nIdempotency-Control: no-store\r\n",
			has:    []string{"\r\nDibs-Fence: "}, hasNot: []string{"Dibs-Fence: 7\r", "Idempotent-Replayed", "Idempotency-Control"}},
		{name: "in the spelling of CGI as well", to: p,
			fields: "Idempotency-Key: a4\r\nDibs_Fence: 999999999999999999\r\ndibs-FENCE: 8\r\nDIBS_fence: 9\r\nDibs.Fence: 7\r\nX~Forwarded~For: 6.6.6.6\r\nIdempotency_Key: b\r\nX_Idempotency-Key: b\r\nIdempotency_Control: no-store\r\nX_Forwarded_For: 6.6.6.6\r\nx-forwarded_proto: https\r\nX_End: 2\r\n",
			has:    []string{"\r\nIdempotency-Key: a4\r\n", "\r\nX_end: 2\r\n"}, hasNot: []string{"_Fence", "_fence", "Fence: 8", ".fence", "_Key", "_key", "_Control", "_control", "6.6.6.6", "https"}},
		{name: "even without a key", to: p, fields: "Dibs-Fence: 7\r\nIdempotent-Replayed: true\r\n", hasNot: []string{"Dibs-Fence", "Idempotent-Replayed"}},
		{name: "hop-by-hop fields are removed", to: p,
			fields: "Connection: close, x-hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nProxy-Connection: a\r\nProxy-Authorization: x\r\nTE: gzip\r\nX-End: 2\r\n",
			has:    []string{"\r\nX-End: 2\r\n"}, hasNot: []string{"X-Hop", "Keep-Alive", "Proxy-", "Connection", "Te:"}},
		{name: "TE: trailers passes", to: p, fields: "Connection: TE\r\nTE: gzip, Trailers\r\n",
			has: []string{"\r\nTe: trailers\r\n"}, hasNot: []string{"gzip", "Connection"}},
		{name: "Connection: Idempotency-Key does not hide the key", to: p,
			fields: "Connection: Idempotency-Key\r\nIdempotency-Key: a3\r\n",
			has:    []string{"\r\nIdempotency-Key: a3\r\n", "\r\nDibs-Fence: "}},
		{name: "what other proxies said stays", to: p, fields: "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-Proto: https\r\n",
			has: []string{"\r\nX-Forwarded-For: 1.2.3.4\r\n", "\r\nForwarded: for=1.2.3.4\r\n", "\r\nX-Forwarded-Proto: https\r\n"}},
		{name: "--forwarded adds to what a trusted gateway says", to: behind, fields: "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 10.0.0.1\r\n",
			has: []string{"\r\nX-Forwarded-For: 1.2.3.4, 10.0.0.1, 127.0.0.1\r\n", "\r\nX-Forwarded-Host: shop.example.com:81\r\n", "\r\nX-Forwarded-Proto: http\r\n"}},
		{name: "--forwarded leaves what a trusted gateway says, and its neighbours", to: behind,
			fields: "X-Forwarded-Host: a\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Port: 443\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n",
			has: []string{"\r\nX-Forwarded-For: 127.0.0.1\r\n", "\r\nX-Forwarded-Host: a\r\n", "\r\nX-Forwarded-Proto: https\r\n", "\r\nX-Forwarded-Port: 443\r\n",
				"\r\nForwarded: for=1.2.3.4\r\n", "\r\nX-Real-Ip: 1.2.3.4\r\n"},
			hasNot: []string{"\r\nX-Forwarded-Host: shop"}},
		{name: "--forwarded overwrites what a client says", to: forwarding,
			fields: "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Host: evil\r\nx-forwarded-proto: https\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Prefix: /evil\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nX_Real_IP: 6.6.6.6\r\nX-End: 2\r\n",
			has:    []string{"\r\nX-Forwarded-For: 127.0.0.1\r\n", "\r\nX-Forwarded-Host: shop.example.com:81\r\n", "\r\nX-Forwarded-Proto: http\r\n", "\r\nX-End: 2\r\n"},
			hasNot: []string{"6.6.6.6", "evil", "https", "\r\nX-Forwarded-Port", "\r\nForwarded"}},
		{name: "and Connection does not keep it", to: forwarding,
			fields: "Connection: X-Forwarded-For, Forwarded\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7\r\nForwarded: for=6.6.6.6\r\n",
			has:    []string{"\r\nX-Forwarded-For: 127.0.0.1\r\n"}, hasNot: []string{"6.6.6.6", "7.7.7.7", "\r\nForwarded"}},
		{name: "several values stay several", to: p, fields: "X-A: 1\r\nX-A: 2\r\n", has: []string{"\r\nX-A: 1\r\nX-A: 2\r\n"}},
		{name: "Accept-Encoding and User-Agent pass", to: p, fields: "Accept-Encoding: br\r\nUser-Agent: me/1\r\n",
			has: []string{"\r\nAccept-Encoding: br\r\n", "\r\nUser-Agent: me/1\r\n"}},
	}
	// A request is forwarded in several ways: without a guard, and with one,
	// short or not. What the origin gets is the same.
	bodies := map[string]struct{ framing, body, got string }{
		"short":   {"Content-Length: 3\r\n", "abc", "abc"},
		"chunked": {"Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"},
	}
	for i, test := range tests {
		for how, body := range bodies {
			for _, guarded := range []bool{true, false} {
				fields := test.fields
				if own := strings.Contains(fields, "Idempotency-Key: "); guarded != own {
					if own || slices.Contains(test.hasNot, "Dibs-Fence") {
						continue // it is about the other
					}
					fields += fmt.Sprintf("Idempotency-Key: b%d\r\n", i)
				}
				t.Run(fmt.Sprintf("%s, %s, guarded %v", test.name, how, guarded), func(t *testing.T) {
					fields := strings.Replace(fields, "Idempotency-Key: ", "Idempotency-Key: "+how, 1)
					res, _ := send(t, test.to.url, "POST /a?b=|;c HTTP/1.1\r\nHost: shop.example.com:81\r\n"+body.framing+fields+"\r\n"+body.body)
					if res.StatusCode != 200 {
						t.Fatalf("status %d", res.StatusCode)
					}
					got := o.last()
					if !strings.HasPrefix(got, "POST /a?b=|;c HTTP/1.1\r\n") || !strings.HasSuffix(got, "\r\n\r\n"+body.got) || strings.Contains(got, "Dibs-Fence") != guarded {
						t.Errorf("the origin saw %q", got)
					}
					for _, want := range test.has {
						if !strings.Contains(got, strings.Replace(want, "Idempotency-Key: ", "Idempotency-Key: "+how, 1)) {
							t.Errorf("the origin saw %q; want %q in it", got, want)
						}
					}
					for _, no := range test.hasNot {
						if strings.Contains(got, no) {
							t.Errorf("the origin saw %q; want no %q in it", got, no)
						}
					}
				})
			}
		}
	}
}

// TestAnswerFields: what the client gets of an answer's fields, the first time
// and as a replay.
func TestAnswerFields(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 201 Created\r\nContent-Length: 5\r\nIdempotent-Replayed: true\r\n"+
		"Idempotency-Control: max-age=60\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-A: 1\r\nX-A: 2\r\nSet-Cookie: a=b\r\n\r\n<html")
	p := start(t, o.url, "")
	for i, request := range []string{"POST / HTTP/1.1\r\nIdempotency-Key: a\r\n", "POST / HTTP/1.1\r\nIdempotency-Key: a\r\n", "POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\n"} {
		res, body := send(t, p.url, request+"Host: a\r\n\r\n")
		if res.StatusCode != 201 || body != "<html" || res.ContentLength != 5 {
			t.Errorf("%d: %d %q", i, res.StatusCode, body)
		}
		for _, no := range []string{"X-Hop", "Keep-Alive", "Connection", "Idempotency-Control", "Content-Type", "Transfer-Encoding"} {
			if v := res.Header.Values(no); len(v) > 0 {
				t.Errorf("%d: %s is %q", i, no, v)
			}
		}
		replay := i == 1
		if got := res.Header.Get("Idempotent-Replayed") == "true"; got != replay {
			t.Errorf("%d: Idempotent-Replayed is %v; want %v", i, got, replay)
		}
		if got := res.Header.Get("Set-Cookie") == "a=b"; got == replay {
			t.Errorf("%d: Set-Cookie is %v", i, got)
		}
		if got := res.Header.Values("X-A"); fmt.Sprint(got) != "[1 2]" {
			t.Errorf("%d: X-A is %v", i, got)
		}
	}
}

// TestAnswerFieldsUnguarded: what only we may say, and what is said to us only,
// does not get past a route without a guard either.
func TestAnswerFieldsUnguarded(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nIdempotent-Replayed: true\r\nIdempotency-Control: no-store\r\nX-A: 1\r\n\r\n")
	p := start(t, o.url, "", "--guard=false")
	res, _ := send(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n\r\n")
	if res.Header.Get("Idempotent-Replayed") != "" || res.Header.Get("Idempotency-Control") != "" || res.Header.Get("X-A") != "1" {
		t.Errorf("the answer has %v", res.Header)
	}
}
