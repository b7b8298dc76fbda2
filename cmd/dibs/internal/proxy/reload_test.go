package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// The lines of a reload.
const (
	reloaded = `msg="the configuration was reloaded"`
	refused  = `msg="the configuration was not reloaded; the old one stays in use"`
)

// hangUp makes the proxy reload its configuration, waits until it has logged the outcome in that
// many lines, and returns what it logged.
func (r *running) hangUp(t *testing.T, lines int) string {
	t.Helper()
	before := len(r.logs.String())
	r.reload <- syscall.SIGHUP
	testkit.Eventually(t, "the reload", func() bool {
		log := r.logs.String()[before:]
		return strings.Count(log, reloaded)+strings.Count(log, refused) >= lines
	})
	return r.logs.String()[before:]
}

// reconfigure replaces the configuration file and reloads it.
func (r *running) reconfigure(t *testing.T, text string) {
	t.Helper()
	replace(t, r.file(), []byte(text))
	if log := r.hangUp(t, 1); !strings.Contains(log, reloaded) {
		t.Fatalf("the proxy logged %s", log)
	}
}

// file returns the name of the configuration file.
func (r *running) file() string { return r.server.config().source.File }

// request returns a request with a key.
func request(key string) string {
	return "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: " + key + "\r\nContent-Length: 0\r\n\r\n"
}

// sendKey sends a request with a key on a connection of its own.
func (r *running) sendKey(t *testing.T, key string) (*http.Response, string) {
	t.Helper()
	return send(t, r.url, request(key))
}

// gated is an origin that names itself. Its first request waits until open is closed.
type gated struct {
	url   string
	runs  atomic.Int64
	begun chan struct{}
	open  chan struct{}
}

func newGated(t *testing.T, name string) *gated {
	g := &gated{begun: make(chan struct{}), open: make(chan struct{})}
	g.url = origin(t, func(w http.ResponseWriter, _ *http.Request) {
		if g.runs.Add(1) == 1 {
			close(g.begun)
			<-g.open
		}
		io.WriteString(w, name)
	})
	return g
}

// TestReload: a request that runs during a reload ends by the old configuration, and its
// duplicates meet it, by the old configuration and by the new one. Other requests get the new
// one.
func TestReload(t *testing.T) {
	before, after := newGated(t, "before"), newGated(t, "after")
	close(after.open)
	p := start(t, before.url, "wait: 1m\n")
	answers := make(chan string, 3)
	later := func() {
		_, r := raw(t, p.url, request("k"))
		go func() {
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				answers <- err.Error()
				return
			}
			body, _ := io.ReadAll(res.Body)
			answers <- fmt.Sprintf("%d %s", res.StatusCode, body)
		}()
	}
	later()
	<-before.begun
	later() // waits by the old configuration, or by the new one
	p.reconfigure(t, "wait: 1m\nroutes: [{path: /**, upstream: '"+after.url+"'}]\n")
	if res, body := p.sendKey(t, "other"); res.StatusCode != 200 || body != "after" {
		t.Errorf("another request got %d %q", res.StatusCode, body)
	}
	later()
	close(before.open)
	for range 3 {
		if a := <-answers; a != "200 before" {
			t.Errorf("a duplicate got %s", a)
		}
	}
	if a, b := before.runs.Load(), after.runs.Load(); a != 1 || b != 1 {
		t.Errorf("the origins saw %d and %d requests", a, b)
	}
	testkit.Eventually(t, "the old configuration to be forgotten", func() bool { return len(p.server.inUse()) == 1 })
}

// TestReloadRefused: a configuration with a fault, or that changes what needs a restart, changes
// nothing. The log has a line for each reason.
func TestReloadRefused(t *testing.T) {
	files := newPair(t)
	files.renew(t, 1)
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "listen: 127.0.0.1:0\nconflict-status: 423\n")
	file, first := p.file(), p.server.config()
	for _, test := range []struct {
		text string
		want []string
	}{
		{"leese: 3s\n", []string{file + `:1:1: unknown field \"leese\"; did you mean \"lease\"?`}},
		{"wait: soon\n\nkeep: [9x]\n", []string{file + ":1:7: wait: ", file + ":3:"}},
		{"key: json:id\nkey-per: principal\n", []string{file + ":2:1: key-per: "}},
		{"key-ring: /no/such/ring\n", []string{file + ":1:1: key-ring: "}},
		{"a: [", []string{file + ":1:"}},
		{"listen: 127.0.0.1:1\n", []string{`"listen changed: restart the proxy"`}},
		{"", []string{`"listen changed: restart the proxy"`}},
		{"listen: 127.0.0.1:0\nnamespace: a\nadmin: 127.0.0.1:1\n", []string{`"admin changed: restart the proxy"`, `"namespace changed: restart the proxy"`}},
		{"listen: 127.0.0.1:0\ntls-cert: " + files.cert + "\ntls-key: " + files.key + "\n", []string{`"tls-cert changed: restart the proxy"`, `"tls-key changed: restart the proxy"`}},
	} {
		replace(t, file, []byte(test.text))
		log := p.hangUp(t, len(test.want))
		for _, want := range test.want {
			if !strings.Contains(log, want) {
				t.Errorf("%q: the log is %s; want %s", test.text, log, want)
			}
		}
		if n := strings.Count(log, refused); n != len(test.want) || strings.Contains(log, reloaded) {
			t.Errorf("%q: the log has %d reasons, want %d: %s", test.text, n, len(test.want), log)
		}
	}
	os.Remove(file)
	if log := p.hangUp(t, 1); !strings.Contains(log, "there is no file") {
		t.Errorf("without a file the log is %s", log)
	}
	testkit.Must(t, os.Symlink(os.DevNull, file))
	if log := p.hangUp(t, 1); !strings.Contains(log, "not a regular file") {
		t.Errorf("with a device the log is %s", log)
	}
	if len(p.server.inUse()) != 1 || p.server.config() != first {
		t.Error("the configuration has changed")
	}
	p.reconfigure(t, "listen: 127.0.0.1:0\n")
}

// TestEverySettingReloads: a reload changes a setting of the process, or refuses to.
func TestEverySettingReloads(t *testing.T) {
	reloads := []string{"admin-tokens", "drain", "drain-delay", "access-log", "log-level"}
	c := defaults()
	all := settingsOf(&c)
	for _, row := range all[:len(all)-len(settingsOf(&c.Policy))] {
		if (row.tag.Get("fixed") != "") == slices.Contains(reloads, row.name) {
			t.Errorf("decide whether %s needs a restart", row.name)
		}
	}
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "drain: 1m\naccess-log: false\nlog-level: warn\n")
	const line = "msg=request "
	p.sendKey(t, "a")
	if strings.Contains(p.logs.String(), line) {
		t.Error("a request was logged")
	}
	p.reconfigure(t, "drain: 2m\naccess-log: true\nlog-level: debug\n")
	p.sendKey(t, "b")
	testkit.Eventually(t, "lines of the request", func() bool {
		log := p.logs.String()
		return strings.Contains(log, line) && strings.Contains(log, "level=DEBUG")
	})
	if d := p.server.config().Drain; d != 2*time.Minute {
		t.Errorf("drain is %v", d)
	}
}

// TestReloadKeyRing: without a configuration file too, a reload reads the key ring again.
func TestReloadKeyRing(t *testing.T) {
	ring := ringFile(t, ringText(32, "old"))
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "", "--key-ring", ring)
	encrypts := func(want string) {
		t.Helper()
		if id := encryptsWith(&p.server.config().Policy); id != want {
			t.Errorf("the proxy encrypts with %q; want %q", id, want)
		}
	}
	encrypts("old")
	p.sendKey(t, "k")
	replace(t, ring, []byte(ringText(32, "new", "old")))
	p.hangUp(t, 1)
	encrypts("new")
	replace(t, ring, []byte("nonsense"))
	if log := p.hangUp(t, 1); !strings.Contains(log, "key-ring: ") {
		t.Errorf("the log is %s", log)
	}
	testkit.Eventually(t, "the first ring to be forgotten", func() bool { return len(p.server.inUse()) == 1 })
	encrypts("new")
	if res, _ := p.sendKey(t, "k"); res.StatusCode != 200 || res.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("an answer of the old key is answered %d %v", res.StatusCode, res.Header)
	}
}

// TestReloadsLeaveNothing: after 100 reloads no goroutine, routing or connection of an old
// configuration is left.
func TestReloadsLeaveNothing(t *testing.T) {
	var open atomic.Int64
	o := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	o.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	o.Start()
	t.Cleanup(o.Close)
	p := start(t, o.URL, "wait: 1s\n")
	client, keys := browser(false), 0
	exchange := func() {
		for range 3 {
			keys++
			req, err := http.NewRequest("POST", p.url, nil)
			testkit.Must(t, err)
			req.Header.Set("Idempotency-Key", fmt.Sprint("k", keys))
			res, err := client.Do(req)
			testkit.Must(t, err)
			res.Body.Close()
			if res.StatusCode != 200 {
				t.Fatalf("request %d: %s", keys, res.Status)
			}
		}
	}
	exchange()
	before := 0
	for i := range 101 {
		p.reconfigure(t, fmt.Sprintf("wait: %ds\n", i))
		exchange()
		testkit.Eventually(t, "the connections of the old configuration to be closed", func() bool { return open.Load() <= 1 })
		testkit.Eventually(t, "the old configuration to be forgotten", func() bool { return len(p.server.inUse()) == 1 })
		if i == 0 {
			before = runtime.NumGoroutine()
		}
	}
	// Some goroutines of connections that ended may have counted before.
	testkit.Eventually(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before+5 })
}

// forgetful is a store that settles nothing.
type forgetful struct{ *memstore.Store }

func (forgetful) Settle(context.Context, []store.Settlement, []error) error {
	return errors.New("the store is down")
}

// TestReloadDrains: the end of the proxy waits for answers of an old configuration, too, and the
// log says that they were not stored.
func TestReloadDrains(t *testing.T) {
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	p := startOn(t, forgetful{store}, origin(t, func(http.ResponseWriter, *http.Request) {}), "drain: 1m\n")
	if res, _ := p.sendKey(t, "k"); res.StatusCode != 200 {
		t.Errorf("the answer is %d", res.StatusCode)
	}
	p.reconfigure(t, "drain: 0s\n")
	if n := len(p.server.inUse()); n != 2 {
		t.Errorf("%d configurations are in use; want 2, because an answer is not stored", n)
	}
	p.stop()
	if log := p.logs.String(); strings.Count(log, "answers were not stored") != 1 {
		t.Errorf("the log is %s", log)
	}
}

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
