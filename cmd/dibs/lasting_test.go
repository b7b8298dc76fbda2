//go:build nightly

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
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
	{"postgres", func(t *testing.T) string { return ownSchema(t) }},
	{"mariadb", func(t *testing.T) string { return ownPrefix(t, mariadb().URL()) }},
}

// over runs the check over stores of its own.
func over(t *testing.T, stores []onStore, check func(t *testing.T, url string)) {
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			check(t, store.url(t))
		})
	}
}

// TestConformProxyLasting: the proxy passes every case of the kit over every lasting store.
func TestConformProxyLasting(t *testing.T) { over(t, lasting, checkProxy) }

// TestConformProxies: two proxies that share a store pass every case, with connections to both.
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
	pass := func(to, from *net.TCPConn) {
		io.Copy(to, from)
		to.CloseWrite()
	}
	return "http://" + testkit.Serve(t, func(i int, in *net.TCPConn) {
		out, err := net.Dial("tcp", strings.TrimPrefix(proxies[i%len(proxies)].url, "http://"))
		if err != nil {
			return
		}
		defer out.Close()
		go pass(out.(*net.TCPConn), in)
		pass(in, out.(*net.TCPConn))
	})
}

// TestManyDuplicates: 64 connections and 2,000 keys, each sent five times at once.
func TestManyDuplicates(t *testing.T) {
	over(t, lasting, func(t *testing.T, url string) { checkDuplicates(t, url, 2000, 64) })
}

// retrying returns a client with a Transport that does not give up soon.
func retrying(t *testing.T) *http.Client {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	transport, err := retry.New(&retry.Options{
		Base: base, MaxTries: 40, Backoff: 20 * time.Millisecond, MaxBackoff: 2 * killLease, Budget: 1,
	})
	testkit.Must(t, err)
	return &http.Client{Transport: transport}
}

// send posts once, as its caller sees it.
func send(client *http.Client, url, body string) (reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(text)}, err
}

// TestTransportThroughKills: clients with retry.Transport send requests through a proxy
// that is killed and restarted several times. Each call succeeds, and the origin runs only
// those requests again that a kill cut off.
func TestTransportThroughKills(t *testing.T) {
	t.Parallel()
	origin := newCounter(t, func(*http.Request) { <-time.After(5 * time.Millisecond) })
	store, at := sqliteStore(t), servertest.Addr(t)
	begin := func() *process {
		p := start(t, "proxy", "--listen", at, "--upstream", origin.URL, "--store", store, "--lease", "2s")
		p.awaitServing(t)
		return p
	}
	proxy := begin()
	client := retrying(t)
	var all sync.WaitGroup
	const clients, each = 8, 12
	done := make(chan struct{}, clients*each)
	for c := range clients {
		all.Go(func() {
			for i := range each {
				r, err := send(client, "http://"+at+"/charges", strconv.Itoa(c*each+i))
				if err != nil || r.status != http.StatusCreated {
					t.Errorf("call %d of client %d: %+v, %v", i, c, r, err)
				}
				done <- struct{}{}
			}
		})
	}
	for range 3 {
		for range each {
			<-done
		}
		// What runs at this moment, or is about to be settled, may be cut off.
		proxy.signal(t, syscall.SIGKILL)
		<-proxy.done
		proxy = begin()
	}
	all.Wait()
	origin.mu.Lock()
	defer origin.mu.Unlock()
	if len(origin.runs) != clients*each {
		t.Errorf("the origin saw %d keys for %d calls", len(origin.runs), clients*each)
	}
	again := 0
	for _, n := range origin.runs {
		again += n - 1
	}
	// Each kill can cut off what the clients had under way, and nothing else.
	if most := 3 * clients; again > most {
		t.Errorf("%d runs too many; at most %d were cut off", again, most)
	}
	t.Logf("%d calls, %d runs were cut off by three kills and made again", clients*each, again)
}
