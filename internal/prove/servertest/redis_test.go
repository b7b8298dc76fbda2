//go:build unix

package servertest

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func TestRedisRestart(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		persistence Persistence
		end         func(*RedisServer)
		kept        bool
	}{
		{"none, stopped", NoPersistence, (*RedisServer).Stop, false},
		{"RDB, stopped", RDB, (*RedisServer).Stop, true},
		{"RDB, killed", RDB, (*RedisServer).Kill, false},
		{"AOF, killed", AOF, (*RedisServer).Kill, true},
		{"AOF each second, killed", AOFEverySecond, (*RedisServer).Kill, true},
		{"AOF, paused and stopped", AOF, func(s *RedisServer) { s.Pause(); s.Stop() }, true},
		{"AOF, paused and killed", AOF, func(s *RedisServer) { s.Pause(); s.Kill() }, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := Redis(t, &RedisOptions{Persistence: test.persistence})
			addr := s.Addr()
			s.Must("SET", "key", "value")
			test.end(s)
			if s.Running() {
				t.Error("runs after its end")
			}
			if _, err := net.Dial("tcp", addr); err == nil {
				t.Error("can be reached after its end")
			}
			s.Restart()
			if s.Addr() != addr {
				t.Errorf("at %s after a restart; was at %s", s.Addr(), addr)
			}
			want := map[bool]any{true: "value", false: nil}[test.kept]
			if got := s.Must("GET", "key"); got != want {
				t.Errorf("the key is %v after a restart; want %v", got, want)
			}
			id := s.Info("run_id")
			s.Restart() // one that runs
			if s.Info("run_id") == id {
				t.Error("runs on after a restart")
			}
			s.RestartEmpty()
			if got := s.Must("DBSIZE"); got != int64(0) {
				t.Errorf("%v keys after an empty restart", got)
			}
		})
	}
}

func TestRedisOptions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		options *RedisOptions
		url     string // with HOST for the address
		check   func(t *testing.T, s *RedisServer)
	}{
		{"default", nil, "redis://HOST/0", func(t *testing.T, s *RedisServer) {
			if s.TLSConfig() != nil || s.CAFile() != "" {
				t.Error("speaks TLS")
			}
		}},
		{"limits", &RedisOptions{MaxMemory: 32 << 20, Policy: "allkeys-lru", Databases: 99, Directives: []string{"hz 77"}}, "redis://HOST/0", func(t *testing.T, s *RedisServer) {
			for name, want := range map[string]string{"maxmemory": "33554432", "maxmemory-policy": "allkeys-lru", "databases": "99", "hz": "77"} {
				if got := s.Must("CONFIG", "GET", name).([]any); got[1] != want {
					t.Errorf("%s is %v; want %s", name, got[1], want)
				}
			}
		}},
		{"password", &RedisOptions{Password: "a \"b\\\x01é"}, "redis://:a%20%22b%5C%01%C3%A9@HOST/0", func(t *testing.T, s *RedisServer) {
			stranger, err := dialRedis(s.Addr(), nil, "", "")
			testkit.Must(t, err)
			defer stranger.Close()
			if _, err := stranger.Do("GET", "key"); !strings.HasPrefix(errorText(err), "NOAUTH") {
				t.Errorf("a stranger gets %v", err)
			}
		}},
		{"users", &RedisOptions{Users: []string{"app on >secret ~dibs:* +get"}}, "redis://HOST/0", func(t *testing.T, s *RedisServer) {
			app, err := dialRedis(s.Addr(), nil, "app", "secret")
			testkit.Must(t, err)
			defer app.Close()
			if got, err := app.Do("GET", "dibs:key"); got != nil || err != nil {
				t.Errorf("own keys: %v, %v", got, err)
			}
			if _, err := app.Do("GET", "key"); !strings.HasPrefix(errorText(err), "NOPERM") {
				t.Errorf("the keys of others: %v", err)
			}
		}},
		{"TLS", &RedisOptions{TLS: true, Password: "secret"}, "rediss://:secret@HOST/0", func(t *testing.T, s *RedisServer) {
			if _, err := dialRedis(s.Addr(), nil, "default", "secret"); err == nil {
				t.Error("speaks without TLS too")
			}
			if _, err := dialRedis(s.Addr(), &tls.Config{}, "default", "secret"); err == nil {
				t.Error("its certificate is trusted by every client")
			}
			if pem, err := os.ReadFile(s.CAFile()); err != nil || !strings.Contains(string(pem), "BEGIN CERTIFICATE") {
				t.Errorf("the certificate to trust: %s, %v", pem, err)
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := Redis(t, test.options)
			if want := strings.Replace(test.url, "HOST", s.Addr(), 1); s.URL() != want {
				t.Errorf("URL is %s; want %s", s.URL(), want)
			}
			if got := s.Must("PING"); got != "PONG" {
				t.Errorf("PING says %v", got)
			}
			test.check(t, s)
		})
	}
}

// errorText is the text of an error that may be nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRedisPause(t *testing.T) {
	t.Parallel()
	s := Redis(t, nil)
	c, err := s.Dial()
	testkit.Must(t, err)
	defer c.Close()
	s.Pause()
	// Do may reach its deadline before it sends.
	if _, err := c.conn.Write(appendRequest(nil, []any{"INCR", "key"})); err != nil {
		t.Fatal(err)
	}
	c.Timeout = 50 * time.Millisecond
	if got, err := c.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused server says %v, %v", got, err)
	}
	if !s.Running() {
		t.Error("does not run while paused")
	}
	s.Continue()
	c.Timeout = waitLimit
	if got, err := c.Receive(); got != int64(1) || err != nil {
		t.Errorf("after it went on it says %v, %v; want 1", got, err)
	}
}

func TestRedisReplica(t *testing.T) {
	t.Parallel()
	o := RedisOptions{Password: "a b", TLS: true, Persistence: AOF}
	master := Redis(t, &o)
	o.ReplicaOf = master
	replica := Redis(t, &o)
	replica.AwaitReplica()
	master.Must("SET", "key", "value")
	replica.AwaitReplica()
	if _, err := replica.Do("SET", "key", "other"); !strings.HasPrefix(errorText(err), "READONLY") {
		t.Errorf("writing to a replica: %v", err)
	}
	master.Kill()
	replica.Promote()
	replica.Must("APPEND", "key", "s")
	replica.Restart()
	if got := replica.Info("role"); got != "master" {
		t.Errorf("promoted, it is a %s", got)
	}

	master.Restart()
	master.ReplicaOf(replica)
	if got := master.Must("GET", "key"); got != "values" {
		t.Errorf("the old master has %v; want values", got)
	}
	master.Restart()
	master.AwaitReplica()
}

// No other process gets the address of a server that is down, and many servers do
// not get in each other's way.
func TestRedisKeepsItsAddress(t *testing.T) {
	t.Parallel()
	down := Redis(t, nil)
	down.Kill()
	others, err := startAll(t, slices.Repeat([]*RedisOptions{{}}, 8))
	testkit.Must(t, err)
	seen := map[string]bool{down.Addr(): true}
	for _, s := range others {
		if seen[s.Addr()] {
			t.Errorf("two servers at %s", s.Addr())
		}
		seen[s.Addr()] = true
	}
	// A process that asks for this port, as other servers do, is refused.
	config := net.ListenConfig{Control: withoutReuse}
	if l, err := config.Listen(context.Background(), "tcp", down.Addr()); err == nil {
		l.Close()
		t.Error("the address was free")
	}
	down.Restart()
}

func BenchmarkRedisStart(b *testing.B) {
	for b.Loop() {
		scope := NewScope()
		Redis(scope, nil)
		scope.Close()
	}
}
