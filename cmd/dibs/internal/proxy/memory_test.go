package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestRoutesShareTheMemory: max-body-memory bounds the bodies of all routes together, those that run by
// older settings too. A reload that fails changes nothing.
func TestRoutesShareTheMemory(t *testing.T) {
	// A little more than three bodies, because runs of other tests, whose stores never answer, have some.
	entered, open := make(chan struct{}), make(chan struct{})
	defer close(open)
	text := "max-body-memory: 3500KiB\nroutes:\n  - path: /a\n  - path: /b\n"
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {
		select {
		case entered <- struct{}{}:
		case <-open:
		}
		<-open
	}), text)
	request := func(path string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nIdempotency-Key: %[1]s\r\nContent-Length: 1048576\r\nConnection: close\r\n\r\n%s", path, strings.Repeat("x", 1<<20))
	}
	for _, path := range []string{"/a/1", "/b/1", "/c/1"} {
		raw(t, p.url, request(path))
		testkit.Await(t, "the request at the origin", entered)
	}
	for _, path := range []string{"/a/2", "/b/2", "/c/2"} {
		if res, _ := send(t, p.url, request(path)); res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s without room is answered %d", path, res.StatusCode)
		}
	}
	if s, err := p.server.newRouting(&Config{Policy: Policy{Upstream: "http://[", MaxBodyMemory: 5 << 20}}); err == nil || memory.Process().Memory.Most() != 3500<<10 {
		t.Errorf("after settings that are wrong (%v, %v) the bound is %d", s, err, memory.Process().Memory.Most())
	}
	p.reconfigure(t, strings.Replace(text, "3500KiB", "4500KiB", 1))
	raw(t, p.url, request("/a/3"))
	testkit.Await(t, "one more request at the origin", entered)
	if res, _ := send(t, p.url, request("/b/3")); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after a reload, a request without room is answered %d", res.StatusCode)
	}
}
