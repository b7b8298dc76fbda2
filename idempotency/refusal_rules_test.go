package idempotency_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// connect opens a connection to a server with the middleware. A client library would hide the
// defects that these tests look for.
func connect(t *testing.T, o *idempotency.Options) (g *rig, c net.Conn) {
	t.Helper()
	g = newRig(t, o, nil)
	server := httptest.NewServer(g.h)
	t.Cleanup(server.Close)
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	testkit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return g, c
}

// status reads an answer and the end of the connection, or the next answer's beginning.
func status(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute)) // it does not hang
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	if _, err := io.ReadAll(res.Body); err != nil {
		return err.Error()
	}
	return fmt.Sprint(res.StatusCode)
}

var refusalRules = []rule{
	{"A refusal reaches the client", func(t *testing.T) {
		for name, test := range map[string]struct {
			options idempotency.Options
			key     string
			chunked bool
			size    int
			want    string
		}{
			"no key":             {idempotency.Options{RequireKey: true}, "", false, 4 << 20, "400"},
			"malformed key":      {idempotency.Options{}, "Idempotency-Key: \"\r\n", false, 4 << 20, "400"},
			"too large":          {idempotency.Options{}, "Idempotency-Key: k\r\n", false, 20 << 20, "413"},
			"too large, chunked": {idempotency.Options{}, "Idempotency-Key: k\r\n", true, 20 << 20, "413"},
		} {
			g, c := connect(t, &test.options)
			// As a client that sends all before it reads.
			framing := fmt.Sprintf("Content-Length: %d", test.size)
			if test.chunked {
				framing = "Transfer-Encoding: chunked"
			}
			_, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\n%s%s\r\n\r\n", test.key, framing)
			piece := strings.Repeat("x", 1<<16)
			for sent := 0; err == nil && sent < test.size; sent += len(piece) {
				if test.chunked {
					_, err = fmt.Fprintf(c, "%x\r\n%s\r\n", len(piece), piece)
				} else {
					_, err = io.WriteString(c, piece)
				}
			}
			if err == nil && test.chunked {
				_, err = io.WriteString(c, "0\r\n\r\n")
			}
			if err != nil {
				t.Errorf("%s: the client could not send: %v", name, err)
			}
			if got := status(t, c); got != test.want {
				t.Errorf("%s: got %s, want %s", name, got, test.want)
			}
			g.ran(0)
		}
	}},
	{"A refusal reaches the client", func(t *testing.T) {
		// What a client sends of a refused body is not served as a request.
		for name, body := range map[string]string{
			"too short": "Content-Length: 1000\r\n\r\n",
			"malformed": "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		} {
			g, c := connect(t, &idempotency.Options{RequireKey: true})
			fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\n"+body+"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
			testkit.Must(t, c.(*net.TCPConn).CloseWrite())
			_ = c.SetReadDeadline(time.Now().Add(time.Minute)) // it does not hang
			got, err := io.ReadAll(c)
			if answers := strings.Count(string(got), "HTTP/1.1 "); err != nil || answers != 1 || !strings.Contains(string(got), "\r\nConnection: close\r\n") {
				t.Errorf("%s: %d answers, %v: %q", name, answers, err, got)
			}
			g.ran(0)
		}
	}},
	{"A refusal reaches the client", func(t *testing.T) {
		// Over HTTP/2 a "100 Continue" goes before the answer, because it must not follow.
		g := newRig(t, &idempotency.Options{RequireKey: true}, nil)
		server, client := http2Server(t, g.h)
		continued := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued = true }})
		r := testkit.Request(ctx, t, "POST", server.URL, strings.NewReader(strings.Repeat("x", 1<<20)))
		r.Header.Set("Expect", "100-continue")
		res, err := client.Do(r)
		testkit.Must(t, err)
		defer res.Body.Close()
		if _, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 400 || !continued {
			t.Errorf("got %d, %v; the body was asked for: %v", res.StatusCode, err, continued)
		}
		g.ran(0)
	}},
	{"A refusal reaches the client", func(t *testing.T) {
		// A client that got 100 Continue sends a body that is too large before it reads.
		g, c := connect(t, &idempotency.Options{MaxBody: 1 << 10})
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
		r := bufio.NewReader(c)
		for range 2 { // the line of 100 Continue, and the empty one
			if _, err := r.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		piece := fmt.Sprintf("%x\r\n%s\r\n", 1<<16, strings.Repeat("x", 1<<16))
		for range 256 {
			if _, err := io.WriteString(c, piece); err != nil {
				t.Fatalf("the client could not send: %v", err)
			}
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 413 {
			t.Errorf("got %v, %v", res, err)
		}
		g.ran(0)
	}},
	{"A body that stops is refused", func(t *testing.T) {
		for _, part := range []string{
			"Content-Length: 3\r\n\r\na",
			"Transfer-Encoding: chunked\r\n\r\n3\r\na",
			"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n",
			"Transfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n1\r\na\r\n0\r\nX-A: 1",
		} {
			g, c := connect(t, &idempotency.Options{BodyTimeout: 50 * time.Millisecond})
			fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n"+part)
			if got := status(t, c); got != "408" {
				t.Errorf("after %q: got %s, want 408", part, got)
			}
			g.ran(0)
		}
		// The time is that of a pause, not that of the body.
		g, c := connect(t, &idempotency.Options{BodyTimeout: time.Minute})
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 3\r\n\r\na")
		fmt.Fprint(c, "b")
		fmt.Fprint(c, "c")
		if got := status(t, c); got != "201" {
			t.Errorf("got %s, want 201", got)
		}
		g.ran(1)
	}},
}
