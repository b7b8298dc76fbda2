//go:build nightly

package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// unusable is a store that cannot be used, and the message about it.
type unusable struct{ url, names, says string }

// idle returns an origin that must get no request.
func idle(t *testing.T) *counter {
	t.Helper()
	origin := newCounter(t, nil)
	t.Cleanup(func() { // when all below have ended
		if origin.total() != 0 {
			t.Error("something ran")
		}
	})
	return origin
}

// addr returns the address of the origin.
func (c *counter) addr() string { return strings.TrimPrefix(c.URL, "http://") }

// checkUnusable: a store that cannot be used ends every command with 69, and a line that
// names the server without its password. Nothing runs.
func checkUnusable(t *testing.T, origin *counter, all map[string]unusable) {
	for name, test := range all {
		for _, args := range [][]string{
			{"proxy", "--listen", "127.0.0.1:0", "--upstream", origin.URL},
			{"run", "k", "--", "touch", "ran"},
			{"ls"},
			{"forget", "k", "--yes"},
			{"doctor"},
			{"demo", "--exit"},
		} {
			t.Run(args[0]+" "+name, func(t *testing.T) {
				t.Parallel()
				// Flags come before the key and the command.
				args := append([]string{args[0], "--store", test.url}, args[1:]...)
				code, stdout, stderr := run(t, args...)
				quiet := stdout == "" || args[0] == "doctor" // which says that the URL is an argument
				if code != 69 || !quiet || !strings.Contains(stderr, test.names) || !strings.Contains(stderr, test.says) {
					t.Errorf("%d %q %q; want %q", code, stdout, stderr, test.says)
				}
				if strings.Count(stderr, "\n") != 1 {
					t.Errorf("it is not a line: %q", stderr)
				}
				if strings.Contains(stdout+stderr, secret) {
					t.Errorf("the password is in %q %q", stdout, stderr)
				}
			})
		}
	}
}

// checkReplica: a command that writes is refused by a server that takes no writes. A command that
// changes nothing may use one.
func checkReplica(t *testing.T, url string) {
	t.Helper()
	code, stdout, stderr := run(t, "run", "--store", url, "k", "--", "touch", "ran")
	if code != 69 || stdout != "" || !strings.Contains(stderr, "takes no writes") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("run on a replica: %d %q %q", code, stdout, stderr)
	}
	if code, _, stderr := run(t, "ls", "--store", url); code != 0 {
		t.Errorf("ls on a replica: %d %q", code, stderr)
	}
}

// TestAway: see checkAway.
func TestAway(t *testing.T) {
	t.Run("redis", redisAway)
	t.Run("postgres", postgresAway)
	t.Run("mariadb", mariadbAway)
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
