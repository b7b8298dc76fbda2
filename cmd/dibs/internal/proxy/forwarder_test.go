package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestRelayedFraming: the origin gets no body if the client sent none.
func TestRelayedFraming(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := start(t, o.url+"/api", "")
	tests := []struct{ request, fields, line, has, hasNot string }{
		{"POST /a HTTP/1.1\r\n", "", "POST /api/a HTTP/1.1\r\n", "\r\nContent-Length: 0\r\n", "Transfer-Encoding"},
		{"PATCH /a HTTP/1.1\r\n", "Content-Length: 0\r\n", "PATCH /api/a HTTP/1.1\r\n", "\r\nContent-Length: 0\r\n", "Transfer-Encoding"},
		{"DELETE //a/../b HTTP/1.1\r\n", "", "DELETE /api//a/../b HTTP/1.1\r\n", "\r\nHost: a\r\n", "Content-Length"},
		{"CHARGE /%2F?a;b|c HTTP/1.1\r\n", "", "CHARGE /api/%2F?a;b|c HTTP/1.1\r\n", "\r\nHost: a\r\n", "Content-Length"},
		{"POST http://a/x HTTP/1.1\r\n", "", "POST /api/x HTTP/1.1\r\n", "\r\nHost: a\r\n", "Transfer-Encoding"},
		{"POST /a HTTP/1.1\r\n", "Expect: 100-continue\r\nContent-Length: 0\r\n", "POST /api/a HTTP/1.1\r\n", "\r\nContent-Length: 0\r\n", "Transfer-Encoding"},
	}
	for i, test := range tests {
		res, _ := send(t, p.url, test.request+"Host: a\r\nIdempotency-Key: "+fmt.Sprint(i)+"\r\n"+test.fields+"\r\n")
		got := o.last()
		if res.StatusCode != 200 || !strings.HasPrefix(got, test.line) || !strings.HasSuffix(got, "\r\n\r\n") ||
			!strings.Contains(got, test.has) || strings.Contains(got, test.hasNot) || !strings.Contains(got, "Dibs-Fence") {
			t.Errorf("%q: %d, the origin saw %q", test.request, res.StatusCode, got)
		}
	}
	// HTTP/1.0 knows no Host; the origin does.
	send(t, p.url, "POST /old HTTP/1.0\r\nIdempotency-Key: old\r\nContent-Length: 1\r\n\r\na")
	if got := o.last(); !strings.HasPrefix(got, "POST /api/old HTTP/1.1\r\n") || !strings.Contains(got, "\r\nHost: "+strings.TrimPrefix(o.url, "http://")+"\r\n") {
		t.Errorf("the origin saw %q", got)
	}
}

// TestRelayedAnswer: however the origin frames its answer, the client gets it
// whole, with and without a guard, and as a replay.
func TestRelayedAnswer(t *testing.T) {
	tests := map[string]string{
		"chunks":                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\no\n\r\n1\r\nk\r\n0\r\n\r\n",
		"an announced trailer":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, X-None\r\n\r\n3\r\no\nk\r\n0\r\nX-Sum: 1\r\nX-Sum: 2\r\n\r\n",
		"an unannounced trailer": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\no\nk\r\n0\r\nX-Sum: 1\r\nX-Sum: 2\r\n\r\n",
		"a long one":             "HTTP/1.1 200 OK\r\nContent-Length: 100003\r\n\r\n" + strings.Repeat("o", 100000) + "o\nk",
		"an empty one":           "HTTP/1.1 204 No Content\r\n\r\n",
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			o := newBareOrigin(t, answer)
			p := start(t, o.url, "")
			var first string
			for i, key := range []string{"", "Idempotency-Key: k\r\n", "Idempotency-Key: k\r\n"} {
				res, body := send(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n"+key+"\r\n")
				got := fmt.Sprint(res.StatusCode, res.Trailer["X-Sum"], body)
				if i == 0 {
					first = got
					if strings.Contains(name, "trailer") && len(res.Trailer["X-Sum"]) != 2 {
						t.Errorf("the trailer is %v", res.Trailer)
					}
				}
				if got != first {
					t.Errorf("%d: got %.60q; without a guard it is %.60q", i, got, first)
				}
			}
			if !strings.HasPrefix(first, "20") {
				t.Errorf("got %.60q", first)
			}
		})
	}
}

// TestEarlyRefusalsArrive: a client that sends all before it reads gets the answer, even
// when the origin refuses.
func TestEarlyRefusalsArrive(t *testing.T) {
	// The origin answers before it has read the body, and leaves.
	addr := testkit.Serve(t, func(_ int, c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!")
		}
	})
	p := start(t, "http://"+addr, "routes:\n  - host: a\n", "--require-key=false")
	for name, test := range map[string]struct {
		head   string
		status int
	}{
		"the origin":     {"POST / HTTP/1.1\r\nHost: a\r\n", 413},
		"no such method": {"PRI /x HTTP/1.1\r\nHost: a\r\n", 400},
		"no such target": {"POST //a|b HTTP/1.1\r\nHost: a\r\n", 400},
	} {
		c, r := raw(t, p.url, test.head+"Content-Length: 4194304\r\n\r\n")
		if _, err := io.WriteString(c, strings.Repeat("x", 4<<20)); err != nil {
			t.Errorf("%s: the client could not send: %v", name, err)
		}
		if res, _ := answerOf(t, r); res.StatusCode != test.status {
			t.Errorf("%s: got %d, want %d", name, res.StatusCode, test.status)
		}
	}
}

// TestEarlyRefusalsArriveOverHTTP2: a refusal is an answer there, too, and not a reset stream.
func TestEarlyRefusalsArriveOverHTTP2(t *testing.T) {
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "", "--require-key")
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	for key, want := range map[string]int{"": 400, "k": 413} {
		// Its length is not known before, so that all of it is sent.
		body := io.MultiReader(strings.NewReader(strings.Repeat("x", 9<<20)))
		req := testkit.Request(t.Context(), t, "POST", p.url, body)
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Errorf("with the key %q: %v", key, err)
			continue
		}
		if _, err := io.ReadAll(res.Body); err != nil || res.StatusCode != want {
			t.Errorf("with the key %q: %d, %v; want %d", key, res.StatusCode, err, want)
		}
		res.Body.Close()
	}
}

// TestEarlyRefusalsEndOverHTTP2: a refusal of the origin ends, even when the client sends no
// more and does not end its request.
func TestEarlyRefusalsEndOverHTTP2(t *testing.T) {
	t.Parallel()
	p := start(t, origin(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // or it reads on before it answers
		_, _ = r.Body.Read(make([]byte, 1))
		w.WriteHeader(http.StatusForbidden)
	}), "")
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	more, sends := io.Pipe()
	defer sends.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	req := testkit.Request(ctx, t, "POST", p.url, more)
	go io.WriteString(sends, "x")
	res, err := (&http.Client{Transport: tr}).Do(req)
	testkit.Must(t, err)
	defer res.Body.Close()
	if _, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("got %d, %v", res.StatusCode, err)
	}
}

// TestLastOfConnection: what follows a request that could be read as two is not served, whatever
// the origin sends before its answer.
func TestLastOfConnection(t *testing.T) {
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		fmt.Fprint(w, r.URL.Path)
	})
	p := start(t, up, "")
	for _, head := range []string{
		"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", // its replay
		"GET /a HTTP/1.1\r\nHost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n",
		"POST /a HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n",
		"PRI * HTTP/2.0\r\nHost: a\r\n",
	} {
		c, _ := raw(t, p.url, head+"\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(time.Minute)) // it does not hang
		got, err := io.ReadAll(c)
		if answers := strings.Count(string(got), "HTTP/1.") - strings.Count(string(got), " 103 "); err != nil || answers != 1 || strings.Contains(string(got), "/smuggled") {
			t.Errorf("%q: got %q, %v", head, got, err)
		}
	}
}

// TestFailuresOfGRPCThroughTheProxy: the header of an answer that is a trailer alone ends the
// stream, and an answer ends when the origin's does, even while the client could send more.
func TestFailuresOfGRPCThroughTheProxy(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "14")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	tr := &http.Transport{Protocols: s.Config.Protocols}
	defer tr.CloseIdleConnections()
	gone := testkit.Listen(t)
	gone.Close()
	for name, upstream := range map[string]string{"of the origin": s.Listener.Addr().String(), "of the proxy": gone.Addr().String()} {
		p := start(t, "h2c://"+upstream, "")
		more, sends := io.Pipe()
		req := testkit.Request(t.Context(), t, "POST", p.url, more)
		req.Header.Set("Content-Type", "application/grpc")
		go io.WriteString(sends, "\x00\x00\x00\x00\x00")
		res, err := (&http.Client{Transport: tr}).Do(req)
		testkit.Must(t, err)
		if res.Header.Get("Grpc-Status") != "14" || res.ContentLength != 0 { // net/http says so of an ended stream
			t.Errorf("a failure %s is %v, of length %d", name, res.Header, res.ContentLength)
		}
		res.Body.Close()
		sends.Close()
	}
}

// TestUnfinishedUploads: an answer to a request that has not ended is the last of its
// connection.
func TestUnfinishedUploads(t *testing.T) {
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "")
	c, r := raw(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
	if res, _ := answerOf(t, r); res.StatusCode != 200 || !res.Close {
		t.Errorf("got %d, with the connection closed: %v", res.StatusCode, res.Close)
	}
	c.Close()
	_, r = raw(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na")
	if res, _ := answerOf(t, r); res.StatusCode != 200 || res.Close {
		t.Errorf("got %d, with the connection closed: %v", res.StatusCode, res.Close)
	}
}

// TestUpgradeDeclined: an offer of HTTP/2 or TLS does not reach the origin, which could
// take it up and be spoken to past the guard.
func TestUpgradeDeclined(t *testing.T) {
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" && r.Header.Get("Connection") == "" {
			w.WriteHeader(204)
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
	})
	p := start(t, up, "")
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: %d\r\nContent-Length: 0\r\n",
	} {
		for i, offer := range []string{"h2c", "TLS/1.0, HTTP/1.1", "http/2, H2C"} {
			head := strings.ReplaceAll(request, "%d", fmt.Sprint(i)) + "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: " + offer + "\r\n\r\n"
			if res, _ := send(t, p.url, head); res.StatusCode != 204 {
				t.Errorf("%q is answered %d", head, res.StatusCode)
			}
		}
	}
	p.stop()
}

// TestEvents: an event stream is passed on as it comes, guarded or not; a
// guarded one is stored at its end.
func TestEvents(t *testing.T) {
	var runs atomic.Int64
	next := make(chan string)
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.WriteHeader(200)
		for event := range next {
			if event == "" {
				return
			}
			io.WriteString(w, event)
			http.NewResponseController(w).Flush()
		}
	})
	p := start(t, up, "")
	requests := []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"}
	for _, request := range requests {
		_, r := raw(t, p.url, request)
		for i := range 3 {
			// The next event is made only when this one has arrived.
			event := fmt.Sprintf("data: %d\n\n", i)
			next <- event
			if i == 0 {
				res, err := http.ReadResponse(r, nil)
				if err != nil || res.StatusCode != 200 {
					t.Fatalf("%v %v", res, err)
				}
				r = bufio.NewReader(res.Body)
			}
			got := make([]byte, len(event))
			if _, err := io.ReadFull(r, got); err != nil || string(got) != event {
				t.Fatalf("the event %q arrived as %q, %v", event, got, err)
			}
		}
		next <- ""
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Fatalf("after the end: %q %v", rest, err)
		}
	}
	res, body := send(t, p.url, requests[1])
	if res.Header.Get("Idempotent-Replayed") != "true" || body != "data: 0\n\ndata: 1\n\ndata: 2\n\n" || runs.Load() != 2 {
		t.Errorf("the replay is %v %q after %d runs", res.Header, body, runs.Load())
	}
}

// TestDuplex: both directions stream at the same time over HTTP/1.
func TestDuplex(t *testing.T) {
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		c.EnableFullDuplex()
		w.WriteHeader(200)
		c.Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			w.Write(buf[:n])
			c.Flush()
			if err != nil {
				return
			}
		}
	})
	p := start(t, up, "")
	c, r := raw(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	fmt.Fprintf(c, "3\r\nabc\r\n")
	res, err := http.ReadResponse(r, nil)
	testkit.Must(t, err)
	for _, piece := range []string{"abc", "def", "ghi"} {
		if piece != "abc" {
			fmt.Fprintf(c, "3\r\n%s\r\n", piece)
		}
		got := make([]byte, 3)
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != piece {
			t.Fatalf("%q arrived as %q, %v", piece, got, err)
		}
	}
	fmt.Fprintf(c, "0\r\n\r\n")
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q %v", rest, err)
	}
}

// TestTrailersOfHTTP2: an answer of HTTP/2 can have a length and a trailer; a client of
// HTTP/1 gets the trailer.
func TestTrailersOfHTTP2(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Content-Length", "2")
		io.WriteString(w, "ok")
		w.Header().Set("X-Sum", "1")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	p := start(t, "h2c://"+s.Listener.Addr().String(), "")
	for i, key := range []string{"", "Idempotency-Key: k\r\n", "Idempotency-Key: k\r\n"} {
		res, body := send(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\n"+key+"TE: trailers\r\nContent-Length: 0\r\n\r\n")
		if body != "ok" || res.Trailer.Get("X-Sum") != "1" {
			t.Errorf("%d: %q %v", i, body, res.Trailer)
		}
	}
	p.stop()
}

// TestTrailersSifted: what an outsider may not say to the origin, and what would
// frame the message, does not pass as a trailer either.
func TestTrailersSifted(t *testing.T) {
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, r.Trailer)
	})
	p := start(t, up, "")
	for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
		_, body := send(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\n"+key+"Trailer: X-Asked, Dibs-Fence\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"+
			"X-Asked: 7\r\nDibs-Fence: 99\r\nIdempotent-Replayed: true\r\nIdempotency-Control: no-store\r\nContent-Length: 9\r\nTransfer-Encoding: gzip\r\nTrailer: a\r\n\r\n")
		if body != "map[X-Asked:[7]]" {
			t.Errorf("with %q: the origin's trailer is %s", key, body)
		}
	}
}

// TestInformational: 1xx answers pass, and are not stored.
func TestInformational(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	p := start(t, o.url, "")
	for i := range 2 {
		_, r := raw(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
		tp := textproto.NewReader(r)
		line, err := tp.ReadLine()
		testkit.Must(t, err)
		if i == 0 {
			if line != "HTTP/1.1 103 Early Hints" {
				t.Errorf("the first answer begins with %q", line)
			}
			if h, err := tp.ReadMIMEHeader(); err != nil || h.Get("Link") != "</a.css>" {
				t.Errorf("the hints are %v, %v", h, err)
			}
			if line, err = tp.ReadLine(); err != nil {
				t.Fatal(err)
			}
		}
		h, err := tp.ReadMIMEHeader()
		if line != "HTTP/1.1 200 OK" || err != nil || h.Get("Link") != "" || h.Get("Content-Type") != "" {
			t.Errorf("%d: %q %v %v", i, line, h, err)
		}
	}
}

// TestOldClientIsNotInformed: HTTP/1.0 knows of no informational answers.
func TestOldClientIsNotInformed(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	for _, flag := range []string{"--guard=true", "--guard=false"} {
		p := start(t, o.url, "", flag)
		for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
			_, r := raw(t, p.url, "POST / HTTP/1.0\r\nContent-Length: 1\r\n"+key+"\r\na")
			if all, err := io.ReadAll(r); err != nil || !strings.HasPrefix(string(all), "HTTP/1.0 200 OK\r\n") || strings.Contains(string(all), "103") {
				t.Errorf("%s, %q: %q %v", flag, key, all, err)
			}
		}
	}
}
