package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
