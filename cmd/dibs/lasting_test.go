//go:build nightly

package main

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency/conform"
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
