package main

import (
	"context"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/servertest"
)

// secret must not be seen in anything that is printed.
const secret = "pass-word"

// TestUnusableRedis: a server that is not there, hangs, refuses us or is
// something else ends the program with 69, soon, with a line that names it and
// not its password.
func TestUnusableRedis(t *testing.T) {
	gone := servertest.Redis(t, nil)
	gone.Kill()
	paused := servertest.Redis(t, nil)
	paused.Pause()
	locked := servertest.Redis(t, &servertest.RedisOptions{Password: "another"})
	origin := newCounter(t, nil)
	t.Cleanup(func() { // when all below have ended
		if origin.total() != 0 {
			t.Error("something ran")
		}
	})
	for addr, want := range map[string]string{
		gone.Addr():   "refused",
		paused.Addr(): "said nothing",
		locked.Addr(): "the password is wrong",
		strings.TrimPrefix(origin.URL, "http://"): "is not a Redis",
	} {
		for _, args := range [][]string{
			{"proxy", "--listen", "127.0.0.1:0", "--upstream", origin.URL},
			{"run", "k", "--", "true"},
			{"ls"},
			{"forget", "k", "--yes"},
			{"race"},
		} {
			t.Run(args[0]+" "+want, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				// Flags come before the key and the command.
				args := append([]string{args[0], "--store", "redis://:" + secret + "@" + addr}, args[1:]...)
				code, stdout, stderr := run(t, args...)
				if code != 69 || stdout != "" || !strings.Contains(stderr, addr) || !strings.Contains(stderr, want) {
					t.Errorf("%d %q %q; want %q", code, stdout, stderr, want)
				}
				if strings.Contains(stderr, secret) {
					t.Errorf("the password is in %q", stderr)
				}
				if took := time.Since(began); took > 12*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// TestRedisAway: while the server is down, hangs or may not write, a guarded
// request gets 503 with Retry-After within 5 s and nothing runs; others pass,
// and all is well again afterwards. With --on-store-failure open requests pass,
// marked.
func TestRedisAway(t *testing.T) {
	for name, trouble := range map[string]struct {
		begin, end func(*servertest.RedisServer)
	}{
		"down":      {(*servertest.RedisServer).Kill, (*servertest.RedisServer).Restart},
		"hanging":   {(*servertest.RedisServer).Pause, (*servertest.RedisServer).Continue},
		"read-only": {func(s *servertest.RedisServer) { s.Must("REPLICAOF", "127.0.0.1", 1) }, (*servertest.RedisServer).Promote},
		"full":      {func(s *servertest.RedisServer) { s.Must("CONFIG", "SET", "maxmemory", 1) }, func(s *servertest.RedisServer) { s.Must("CONFIG", "SET", "maxmemory", 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			origin := newCounter(t, nil)
			server := servertest.Redis(t, &servertest.RedisOptions{Persistence: servertest.AOF})
			closed := startProxy(t, origin.URL, server.URL())
			open := startProxy(t, origin.URL, server.URL(), "--on-store-failure", "open", "--namespace", "open")
			mustPost(t, closed.url, "before", "x")
			trouble.begin(server)

			began := time.Now()
			r := mustPost(t, closed.url, "k", "x")
			if took := time.Since(began); r.status != 503 || retryAfter(r) < 1 || took > 5500*time.Millisecond {
				t.Errorf("after %v: %d %v %q", took, r.status, r.header, r.body)
			}
			problemOf(t, r)
			if n := origin.of("k"); n != 0 {
				t.Errorf("it ran %d times", n)
			}
			began = time.Now()
			r = mustPost(t, open.url, "o", "x")
			if took := time.Since(began); r.status != 201 || r.header.Get("Idempotency-Bypassed") != "store-unavailable" || took > 5500*time.Millisecond {
				t.Errorf("open, after %v: %d %v %q", took, r.status, r.header, r.body)
			}
			res, err := http.Get(closed.url)
			if err != nil || res.StatusCode != 201 {
				t.Fatalf("a request without a key: %v %v", res, err)
			}
			res.Body.Close()

			trouble.end(server)
			eventually(t, func() bool { return mustPost(t, closed.url, "k", "x").status == 201 })
			if n := origin.of("k"); n != 1 {
				t.Errorf("afterwards it ran %d times", n)
			}
			if r := mustPost(t, closed.url, "before", "x"); !r.replayed() {
				t.Errorf("what was stored before is not replayed: %d %q", r.status, r.body)
			}
		})
	}
}

// TestKillOnRedis is TestKill with the keys on Redis: what a killed proxy held
// is free when the lease runs out.
func TestKillOnRedis(t *testing.T) {
	g := newGate()
	origin := newCounter(t, g.first())
	defer close(g.open)
	store := servertest.Redis(t, nil).URL()
	first := startProxy(t, origin.URL, store, "--lease", "2s")
	second := startProxy(t, origin.URL, store, "--lease", "2s")
	went := make(chan error, 1)
	go func() {
		_, err := post(context.Background(), http.DefaultClient, first.url+"/", "k", "x")
		went <- err
	}()
	<-g.begun
	killed := time.Now()
	first.signal(t, syscall.SIGKILL)
	if err := <-went; err == nil {
		t.Fatal("the killed proxy answered")
	}
	var r reply
	eventually(t, func() bool {
		r = mustPost(t, second.url+"/", "k", "x")
		return r.status != 409
	})
	if took := time.Since(killed); took < 1200*time.Millisecond || took > 4*time.Second {
		t.Errorf("the key was free %v after the kill; the lease is 2s", took)
	}
	if r.status != 201 || r.body != "run 2 of k" {
		t.Errorf("the second proxy answered %d %q", r.status, r.body)
	}
}

// TestPasswordStaysSecret: neither a proxy's line nor what the demo starts shows
// the password of the store, which others can read among a process's arguments.
func TestPasswordStaysSecret(t *testing.T) {
	server := servertest.Redis(t, &servertest.RedisOptions{Password: secret})
	t.Setenv("DIBS_STORE", server.URL())
	p := start(t, "proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1")
	p.awaitServing(t)
	if line := p.stdout.String(); !strings.Contains(line, "store redis://"+server.Addr()+"/0") || strings.Contains(line, secret) {
		t.Errorf("the proxy prints %q", line)
	}
	demo := start(t, "demo")
	eventually(t, func() bool { return strings.Contains(demo.stdout.String(), "serves on") })
	out, err := exec.Command("ps", "-e", "-o", "args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "--namespace demo-") || strings.Contains(string(out), secret) {
		t.Errorf("among the processes:\n%s", out)
	}
	if said := demo.stdout.String() + demo.stderr.String(); strings.Contains(said, secret) || !strings.Contains(said, "show --namespace") {
		t.Errorf("the demo prints\n%s", said)
	}
	demo.signal(t, syscall.SIGTERM)
	demo.code(t, 20*time.Second)
}
