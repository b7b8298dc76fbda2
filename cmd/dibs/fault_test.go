//go:build unix

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// lockWriter takes SQLite's write lock on a store as another program would, and
// returns how to give it back.
func lockWriter(t *testing.T, path string) (unlock func()) {
	t.Helper()
	// In write-ahead mode the lock is a byte of the index file: 120.
	f, err := os.OpenFile(path+"-shm", os.O_RDWR, 0)
	testkit.Must(t, err)
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Start: 120, Len: 1}
	testkit.Eventually(t, "the lock is free", func() bool { return syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &lock) == nil })
	t.Cleanup(func() { f.Close() })
	return func() { f.Close() }
}

// TestLockedStore: see checkAway; another program has locked the file.
func TestLockedStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dibs.db")
	var unlock func()
	checkAway(t, "sqlite:"+path, func() { unlock = lockWriter(t, path) }, func() { unlock() })
}

// checkAway: while the server is down, hangs or may not write, a guarded request gets 503
// with Retry-After and does not run. Other requests are forwarded. Afterwards all works
// again. With --on-store-failure open, requests are forwarded and marked.
func checkAway(t *testing.T, store string, begin, end func()) {
	origin := newCounter(t, nil)
	closed := startProxy(t, origin.URL, store, "DIBS_PROXY_STORE_TIMEOUT=4s")
	open := startProxy(t, origin.URL, store, "DIBS_PROXY_STORE_TIMEOUT=4s", "--on-store-failure", "open", "--namespace", "open")
	mustPost(t, closed.url, "before", "x")
	begin()

	ready := func(p *process) int {
		res, err := http.Get(p.admin + "/readyz")
		testkit.Must(t, err)
		res.Body.Close()
		return res.StatusCode
	}
	testkit.Eventually(t, "it is not ready", func() bool { return ready(closed) == 503 })
	if got := ready(open); got != 200 {
		t.Errorf("/readyz of the proxy that is open is %d", got)
	}

	r := mustPost(t, closed.url, "k", "x")
	if r.status != 503 || retryAfter(r) < 1 {
		t.Errorf("%d %v %q", r.status, r.header, r.body)
	}
	problemOf(t, r)
	if n := origin.of("k"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
	r = mustPost(t, open.url, "o", "x")
	if r.status != 201 || r.header.Get("Idempotency-Bypassed") != "store-unavailable" {
		t.Errorf("open: %d %v %q", r.status, r.header, r.body)
	}
	res, err := http.Get(closed.url)
	if err != nil || res.StatusCode != 201 {
		t.Fatalf("a request without a key: %v %v", res, err)
	}
	res.Body.Close()

	if n := strings.Count(closed.stderr.String(), "the store fails"); n != 1 {
		t.Errorf("the log says %d times that the store fails; want once", n)
	}

	end()
	testkit.Eventually(t, "it is ready again", func() bool { return ready(closed) == 200 })
	testkit.Eventually(t, "a request runs again", func() bool { return mustPost(t, closed.url, "k", "x").status == 201 })
	testkit.Eventually(t, "the store answers again", func() bool { return strings.Contains(closed.stderr.String(), "the store answers again") })
	if n := origin.of("k"); n != 1 {
		t.Errorf("afterwards it ran %d times", n)
	}
	if r := mustPost(t, closed.url, "before", "x"); !r.replayed() {
		t.Errorf("what was stored before is not replayed: %d %q", r.status, r.body)
	}
}
