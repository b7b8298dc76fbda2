//go:build nightly

package main

import (
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// secret must not appear in any output.
const secret = "pass-word"

// TestUnusableRedis: see checkUnusable.
func TestUnusableRedis(t *testing.T) {
	t.Parallel()
	gone := servertest.Redis(t, nil)
	gone.Kill()
	paused := servertest.Redis(t, nil)
	paused.Pause()
	locked := servertest.Redis(t, &servertest.RedisOptions{Password: "another"})
	origin := idle(t)
	checkUnusable(t, origin, map[string]unusable{
		"gone":     {"redis://:" + secret + "@" + gone.Addr(), gone.Addr(), "refused"},
		"paused":   {"redis://:" + secret + "@" + paused.Addr(), paused.Addr(), "has not answered"},
		"password": {"redis://:" + secret + "@" + locked.Addr(), locked.Addr(), "the password is wrong"},
		"other":    {"redis://:" + secret + "@" + origin.addr(), origin.addr(), "is not a Redis"},
	})
}

// redisAway: see checkAway.
func redisAway(t *testing.T) {
	t.Parallel()
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
			server := servertest.Redis(t, &servertest.RedisOptions{Persistence: servertest.AOF})
			checkAway(t, server.URL(), func() { trouble.begin(server) }, func() { trouble.end(server) })
		})
	}
}

// TestPasswordStaysSecret: neither a proxy's line nor what the demo starts shows
// the password of the store, which others can read among a process's arguments.
func TestPasswordStaysSecret(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t, &servertest.RedisOptions{Password: secret})
		checkPassword(t, server.URL(), "redis://"+server.Addr()+"/0")
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		checkPassword(t, ownSchema(t), "postgres://postgres@"+postgres().Addr()+"/postgres?")
	})
}

func checkPassword(t *testing.T, url, shown string) {
	store := []string{"DIBS_STORE=" + url}
	p := startWith(t, store, "proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1")
	p.awaitServing(t)
	if line := p.stdout.String(); !strings.Contains(line, "store "+shown) || strings.Contains(line, secret) {
		t.Errorf("the proxy prints %q", line)
	}
	demo := startWith(t, store, "demo")
	testkit.Eventually(t, "the demo continues", func() bool { return strings.Contains(demo.stdout.String(), "finds your key:\n\n") })
	out, err := exec.Command("ps", "-e", "-o", "args=").Output()
	testkit.Must(t, err)
	if !strings.Contains(string(out), "--namespace demo-") || strings.Contains(string(out), secret) {
		t.Errorf("among the processes:\n%s", out)
	}
	if said := demo.stdout.String() + demo.stderr.String(); strings.Contains(said, secret) || !strings.Contains(said, "show --namespace") {
		t.Errorf("the demo prints\n%s", said)
	}
	_, rest, _ := strings.Cut(demo.stdout.String(), "The page for operators")
	_, page, _ := strings.Cut(rest, "http://")
	page, _, _ = strings.Cut(page, "\n")
	if res, err := http.Get("http://" + page); err != nil || res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
		t.Errorf("the demo names the page %q: %v, %v", page, res, err)
	} else {
		res.Body.Close()
	}
	demo.signal(t, syscall.SIGTERM)
	demo.code(t)
}

// TestReloadOnRedis is TestReload with a server that pauses for a while.
func TestReloadOnRedis(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	checkReload(t, server.URL(), server.Pause, server.Continue)
}
