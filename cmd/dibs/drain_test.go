//go:build unix

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestDrain: on SIGTERM the proxy accepts no new requests, sends and stores the answer under
// way, and exits with 0. Idle connections, and connections that stopped in the middle of a
// header, do not delay it. A connection that stopped in a body delays it at most by
// body-timeout.
func TestDrain(t *testing.T) {
	t.Parallel()
	g := newGate()
	origin := newCounter(t, g.first())
	store := sqliteStore(t)
	p := startProxy(t, origin.URL, store, "DIBS_PROXY_BODY_TIMEOUT=1s")
	addr := strings.TrimPrefix(p.url, "http://")
	dial := func(text string) net.Conn {
		c, err := net.Dial("tcp", addr)
		testkit.Must(t, err)
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, text)
		return c
	}
	answer := make(chan reply, 1)
	go func() {
		r, err := post(context.Background(), http.DefaultClient, p.url+"/", `"k"`, "x")
		if err != nil {
			r.body = err.Error()
		}
		answer <- r
	}()
	<-g.begun
	dial("")
	dial("POST / HTTP/1.1\r\nHost: a\r\nIdempo")
	dial("POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: half\r\nContent-Length: 10\r\n\r\nabc")
	idle := dial("OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n")
	if line := readLine(t, idle); !strings.Contains(line, "201") {
		t.Fatalf("the connection that should be idle: %s", line)
	}
	p.signal(t, syscall.SIGTERM)
	testkit.Eventually(t, "the proxy closes its listener", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if res, err := http.Get(p.admin + "/readyz"); err != nil || res.StatusCode != 503 {
		t.Errorf("/readyz while stopping: %v %v", res, err)
	}
	select {
	case <-p.done:
		t.Fatal("the proxy did not wait for the answer that was under way")
	case r := <-answer:
		t.Fatalf("there is an answer already: %v", r)
	default:
	}
	close(g.open)
	if r := <-answer; r.status != 201 || r.body != `run 1 of "k"` {
		t.Errorf("the answer under way was %d %q", r.status, r.body)
	}
	if code := p.code(t); code != 0 {
		t.Errorf("the proxy exited with %d", code)
	}
	if log := p.stderr.String(); strings.Contains(log, "aborted") {
		t.Errorf("requests were cut off:\n%s", log)
	}
	next := startProxy(t, origin.URL, store)
	if r := mustPost(t, next.url+"/", `"k"`, "x"); !r.replayed() || r.body != `run 1 of "k"` {
		t.Errorf("after the restart the retry got %d %q", r.status, r.body)
	}
	if n := origin.of("half"); n != 0 {
		t.Errorf("the request without an end ran %d times", n)
	}
}

// TestDrainLimit: --drain bounds the wait, and a second signal ends it at once.
func TestDrainLimit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		flags []string
		again bool
		code  int
	}{
		{name: "the limit", flags: []string{"--drain", "500ms"}, code: 0},
		{name: "a second signal", again: true, code: -1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := newGate()
			origin := newCounter(t, g.first())
			defer close(g.open)
			p := startProxy(t, origin.URL, "memory:", test.flags...)
			go post(context.Background(), http.DefaultClient, p.url+"/", `"k"`, "x")
			<-g.begun
			p.signal(t, syscall.SIGTERM)
			if test.again {
				testkit.Eventually(t, "the proxy ends", func() bool {
					p.Process.Signal(syscall.SIGTERM)
					select {
					case <-p.done:
						return true
					default:
						return false
					}
				})
			}
			if code := p.code(t); code != test.code {
				t.Errorf("the proxy exited with %d; want %d", code, test.code)
			}
		})
	}
}
