//go:build unix

package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// gate stops a run of an origin: it reports when the run has begun, and lets it end.
type gate struct {
	begun chan *http.Request
	open  chan struct{}
}

func newGate() *gate { return &gate{begun: make(chan *http.Request, 10), open: make(chan struct{})} }

// first holds the first request back until the gate opens; others pass.
func (g *gate) first() func(*http.Request) {
	held := make(chan struct{}, 1)
	return func(r *http.Request) {
		select {
		case held <- struct{}{}:
			g.begun <- r
			<-g.open
		default:
		}
	}
}

// killLease is the lease of proxies that are killed or stopped. It is long, because it must not
// expire before that.
const killLease = 10 * time.Second

// clockSlack is how much a store's clock and this host's may differ over a lease.
const clockSlack = 100 * time.Millisecond

// TestKill: a proxy is killed in the middle of a request. The key is free when its lease
// expires and not before. Another proxy takes over, with a higher fence, and knows that the
// attempt was abandoned.
func TestKill(t *testing.T) {
	t.Parallel()
	g := newGate()
	origin := newCounter(t, g.first())
	defer close(g.open)
	store := sqliteStore(t)
	first := startProxy(t, origin.URL, store, "--lease", killLease.String())
	second := startProxy(t, origin.URL, store)
	asked := time.Now()
	went := make(chan error, 1)
	go func() {
		_, err := post(context.Background(), http.DefaultClient, first.url+"/", `"k"`, "x")
		went <- err
	}()
	held := <-g.begun
	first.signal(t, syscall.SIGKILL)
	if err := <-went; err == nil {
		t.Fatal("the killed proxy answered")
	}
	var r reply
	testkit.Eventually(t, "the key is settled", func() bool {
		r = mustPost(t, second.url+"/", `"k"`, "x")
		if r.status == 409 && (retryAfter(r) < 1 || retryAfter(r) > 10) {
			t.Fatalf("Retry-After is %q", r.header.Get("Retry-After"))
		}
		return r.status != 409
	})
	if took := time.Since(asked); took < killLease-clockSlack {
		t.Errorf("the key was free %v after it was asked for; the lease is %v", took, killLease)
	}
	if r.status != 201 || r.body != `run 2 of "k"` || r.replayed() {
		t.Errorf("the second proxy answered %d %q", r.status, r.body)
	}
	before, _ := strconv.ParseUint(held.Header.Get("Dibs-Fence"), 10, 64)
	after, _ := strconv.ParseUint(r.header.Get("X-Fence"), 10, 64)
	if before == 0 || after <= before {
		t.Errorf("the fence went from %d to %d", before, after)
	}
	testkit.Eventually(t, "the second one takes over", func() bool { return strings.Contains(second.stderr.String(), "attempt=2") })
	if r := mustPost(t, second.url+"/", `"k"`, "x"); !r.replayed() || r.body != `run 2 of "k"` {
		t.Errorf("the retry got %d %q", r.status, r.body)
	}
}

// problem is a problem document.
type problem struct {
	Type, Title, Instance string
	Status                int
}

func problemOf(t *testing.T, r reply) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.header.Get("Content-Type") != "application/problem+json" || p.Status != r.status {
		t.Fatalf("no problem document: %d %v %q", r.status, r.header, r.body)
	}
	return p
}

// TestKillAtMostOnce: with --on-crash at-most-once, the outcome of a crashed request stays
// unknown, longer than any retention, until an operator resolves it.
func TestKillAtMostOnce(t *testing.T) {
	t.Parallel()
	g := newGate()
	origin := newCounter(t, g.first())
	defer close(g.open)
	store := sqliteStore(t)
	flags := []string{"--lease", killLease.String(), "--retention", "1s", "--on-crash", "at-most-once"}
	first := startProxy(t, origin.URL, store, flags...)
	second := startProxy(t, origin.URL, store, flags...)
	go post(context.Background(), http.DefaultClient, first.url+"/", `"k"`, "x")
	<-g.begun
	first.signal(t, syscall.SIGKILL)
	var r reply
	testkit.Eventually(t, "the outcome is known to be unknown", func() bool {
		r = mustPost(t, second.url+"/", `"k"`, "x")
		return r.header.Get("Retry-After") == ""
	})
	p := problemOf(t, r)
	if r.status != 409 || !strings.HasSuffix(p.Type, "#outcome-unknown") || !strings.HasPrefix(p.Instance, "urn:dibs:claim:") {
		t.Fatalf("the retry got %d %q", r.status, r.body)
	}
	if code, out, _ := run(t, "show", p.Instance, "--store", store); code != 0 || !strings.Contains(out, "unknown") {
		t.Errorf("show: %d %s", code, out)
	}
	if code, out, stderr := run(t, "resolve", "--store", store, p.Instance, "--status", "202", "--header", "X-Settled: yes", "--body", "it was charged", "--yes"); code != 0 {
		t.Fatalf("resolve: %d %s%s", code, out, stderr)
	}
	r = mustPost(t, second.url+"/", `"k"`, "x")
	if r.status != 202 || r.body != "it was charged" || !r.replayed() || r.header.Get("X-Settled") != "yes" {
		t.Errorf("after it was resolved: %d %v %q", r.status, r.header, r.body)
	}
	if n := origin.of(`"k"`); n != 1 {
		t.Errorf("the origin ran it %d times", n)
	}
}

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
