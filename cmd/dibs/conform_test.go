package main

import (
	"context"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/stores"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/proof/conform"
)

// onStore is a kind of store, and the URL of a new one.
type onStore struct {
	name string
	url  func(t *testing.T) string
}

// lasting are the stores that outlive a process, and that processes can share.
var lasting = []onStore{
	{"sqlite", sqliteStore},
	{"redis", func(t *testing.T) string { return servertest.Redis(t, nil).URL() }},
	{"postgres", func(*testing.T) string { return ownSchema(postgres().URL()) }},
	{"mariadb", func(*testing.T) string { return ownPrefix(mariadb().URL()) }},
}

// every are all stores.
var every = append([]onStore{{"memory", func(*testing.T) string { return "memory:" }}}, lasting...)

// over runs the check over stores of its own.
func over(t *testing.T, stores []onStore, check func(t *testing.T, url string)) {
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			check(t, store.url(t))
		})
	}
}

// newOrigin starts the kit's origin.
func newOrigin(t *testing.T) *conform.Origin {
	t.Helper()
	origin, err := conform.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { origin.Close() })
	return origin
}

// TestConformProxy: the proxy passes every case of the kit, over every store; where the
// store is durable, an answer outlives a proxy that is killed.
func TestConformProxy(t *testing.T) {
	t.Parallel()
	over(t, every, func(t *testing.T, url string) {
		origin := newOrigin(t)
		p := startProxy(t, "http://"+origin.Addr(), url)
		o := conform.Options{Target: p.url, Origin: origin, Profile: conform.Dibs}
		skipped := []string{"key-strict", "missing-refused", "missing-problem", "failed-kept"}
		if url == "memory:" {
			skipped = append(skipped, "restart")
		} else {
			o.Restart = func(context.Context) error {
				p.signal(t, syscall.SIGKILL)
				<-p.done
				startProxy(t, "http://"+origin.Addr(), url, "--listen", strings.TrimPrefix(p.url, "http://"))
				return nil
			}
		}
		conforms(t, &o, skipped...)
	})
}

// TestConformProxies: two proxies that share a store are as good as one, whichever of them
// a connection comes to.
func TestConformProxies(t *testing.T) {
	t.Parallel()
	over(t, lasting, func(t *testing.T, url string) {
		origin := newOrigin(t)
		upstream := "http://" + origin.Addr()
		target := balance(t, startProxy(t, upstream, url), startProxy(t, upstream, url))
		o := conform.Options{Target: target, Origin: origin, Profile: conform.Dibs}
		conforms(t, &o, "key-strict", "missing-refused", "missing-problem", "failed-kept", "restart")
	})
}

// balance gives each connection to the next of the proxies, and returns its URL.
func balance(t *testing.T, proxies ...*process) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for i := 0; ; i++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(proxies[i%len(proxies)].url, "http://"))
			if err != nil {
				in.Close()
				continue
			}
			pass := func(to, from net.Conn) {
				io.Copy(to, from)
				to.(*net.TCPConn).CloseWrite()
			}
			go func() {
				defer in.Close()
				defer out.Close()
				go pass(out, in)
				pass(in, out)
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestConformProxyHTTP2: so does one whose origin is spoken to in HTTP/2.
func TestConformProxyHTTP2(t *testing.T) {
	t.Parallel()
	origin := newOrigin(t)
	p := startProxy(t, "h2c://"+origin.Addr(), "memory:")
	// Nothing is written by hand in HTTP/2.
	byHand := []string{"origin-closes", "origin-chunks", "origin-stray", "origin-garbled", "origin-folded"}
	o := conform.Options{Target: p.url, Origin: origin, Profile: conform.Dibs, Skip: byHand}
	conforms(t, &o, append(byHand, "key-strict", "missing-refused", "missing-problem", "failed-kept", "restart")...)
}

// TestConformProxyStrictly: so does one with all that is off by default.
func TestConformProxyStrictly(t *testing.T) {
	t.Parallel()
	origin := newOrigin(t)
	p := startProxy(t, "http://"+origin.Addr(), "memory:", "--require-key", "--strict-key", "--store-5xx", "--conflict-status", "429")
	o := conform.Options{
		Target: p.url, Origin: origin, Profile: conform.Dibs,
		RequireKey: true, StrictKey: true, Keeps5xx: true, ConflictStatus: 429,
	}
	conforms(t, &o, "key-bare", "key-bare-is-quoted", "missing-runs", "key-in-trailer", "failed-runs-again", "restart")
}

// TestConformMiddleware: the middleware passes every case, over every store, but that
// which is about the server under it.
func TestConformMiddleware(t *testing.T) {
	t.Parallel()
	over(t, every, func(t *testing.T, url string) {
		store, err := stores.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		client, err := dibs.New(store.Store, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		m, err := idempotency.New(client, nil)
		if err != nil {
			t.Fatal(err)
		}
		origin := conform.NewOrigin()
		server := httptest.NewServer(m.Wrap(origin))
		t.Cleanup(server.Close)
		o := conform.Options{Target: server.URL, Origin: origin, Profile: conform.Dibs, Skip: []string{"request-framed-twice"}}
		conforms(t, &o, "key-strict", "missing-refused", "missing-problem", "failed-kept", "restart", "request-framed-twice",
			"request-hop", "fence", "origin-closes", "origin-chunks", "origin-stray", "origin-garbled", "origin-folded")
	})
}

// conforms runs the kit: all cases pass but these, which are not run.
func conforms(t *testing.T, o *conform.Options, skipped ...string) {
	t.Helper()
	o.Timeout = time.Minute // the machine may be busy
	r, err := conform.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Results {
		want := conform.Passed
		if slices.Contains(skipped, r.Results[i].Case.ID) {
			want = conform.Skipped
		}
		if r.Results[i].Outcome != want {
			t.Errorf("not %s: %s", want, strings.TrimSuffix(r.Results[i].Line(), "\n"))
		}
	}
	t.Log(r.Summary())
}
