package redisstore

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestOpen: every way in leads to a store that works, waiting included.
func TestOpen(t *testing.T) {
	t.Parallel()
	user := func(u, name, password string) string {
		parsed, err := url.Parse(u)
		testkit.Must(t, err)
		parsed.User = url.UserPassword(name, password)
		return parsed.String()
	}
	tests := []struct {
		name string
		url  func(t *testing.T) (url string, keys func() string)
	}{
		{"plain", func(t *testing.T) (string, func() string) {
			s := servertest.Redis(t, nil)
			return s.URL(), keysOf(s)
		}},
		{"database", func(t *testing.T) (string, func() string) {
			s := servertest.Redis(t, nil)
			return strings.TrimSuffix(s.URL(), "/0") + "/7", func() string { return s.Info("db7") }
		}},
		{"password", func(t *testing.T) (string, func() string) {
			s := servertest.Redis(t, &servertest.RedisOptions{Password: "p:w/d@?#%"})
			return user(s.URL(), "", "p:w/d@?#%"), keysOf(s)
		}},
		{"user", func(t *testing.T) (string, func() string) {
			s := servertest.Redis(t, &servertest.RedisOptions{Users: []string{"app on >secret ~dibs:* &dibs:* +@all -@admin"}})
			return user(s.URL(), "app", "secret"), keysOf(s)
		}},
		{"TLS", func(t *testing.T) (string, func() string) {
			s := servertest.Redis(t, &servertest.RedisOptions{TLS: true})
			return s.URL() + "?ca=" + url.QueryEscape(s.CAFile()), keysOf(s)
		}},
		{"TLS by name", func(t *testing.T) (string, func() string) {
			s := servertest.Redis(t, &servertest.RedisOptions{TLS: true})
			return s.URL() + "?server-name=localhost&ca=" + url.QueryEscape(s.CAFile()), keysOf(s)
		}},
		{"TLS with a certificate", func(t *testing.T) (string, func() string) {
			s := servertest.Redis(t, &servertest.RedisOptions{TLS: true, Directives: []string{"tls-auth-clients yes"}})
			return s.URL() + "?" + url.Values{"ca": {s.CAFile()}, "cert": {s.CAFile()}, "key": {keyFile(s)}}.Encode(), keysOf(s)
		}},
		{"TLS unverified", func(t *testing.T) (string, func() string) {
			s := servertest.Redis(t, &servertest.RedisOptions{TLS: true})
			return s.URL() + "?skip-verify=true", keysOf(s)
		}},
		{"socket", func(t *testing.T) (string, func() string) {
			path := filepath.Join(shortDir(t), "s")
			s := servertest.Redis(t, &servertest.RedisOptions{Directives: []string{"unixsocket " + path}})
			return "redis+unix://" + path + "?db=1", func() string { return s.Info("db1") }
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url, keys := test.url(t)
			opens(t, url, keys)
		})
	}
}

// opens opens a store on servers without keys, and uses it.
func opens(t *testing.T, url string, keys func() string) {
	t.Helper()
	if got := keys(); got != "" {
		t.Fatalf("there are keys already: %s", got)
	}
	s, err := Open(t.Context(), url, &Options{patience: testkit.Limit})
	testkit.Must(t, err)
	defer s.Close()
	work(t, s)
	if keys() == "" {
		t.Error("there are no keys where they should be")
	}
	testkit.Check(t, s.Close())
	if err := s.Claim(t.Context(), nil, nil); err == nil {
		t.Error("a closed store answers")
	}
}

// work has two clients take turns, with records.
func work(t *testing.T, s *Store) {
	t.Helper()
	for i := range 8 {
		key := fmt.Sprint("key ", i)
		entered := make(chan struct{})
		first, second := newClient(t, s, nil), newClient(t, s, nil)
		done := make(chan error, 1)
		go func() {
			<-entered
			done <- second.Do(t.Context(), key, func(context.Context) error { return nil })
		}()
		lease, err := first.Acquire(t.Context(), key, nil)
		testkit.Must(t, err)
		close(entered)
		awaitQueue(t, s, key)
		testkit.Check(t, lease.Release())
		testkit.Check(t, <-done)
		got, err := dibs.Once(t.Context(), first, "once "+key, nil, func(context.Context) (int, error) { return i, nil })
		if err != nil || got != i {
			t.Errorf("%d, %v", got, err)
		}
	}
}

// awaitQueue returns when a caller waits for the key.
func awaitQueue(t *testing.T, s *Store, key string) {
	t.Helper()
	testkit.Eventually(t, "a caller waits", func() bool {
		for e, err := range s.List(t.Context(), store.Query{Namespace: new(string), Name: key}) {
			testkit.Must(t, err)
			return e.Waiters == 1
		}
		return false
	})
}

// keysOf returns a function that describes a server's keys; "" for none.
func keysOf(s *servertest.RedisServer) func() string { return func() string { return s.Info("db0") } }

// keyFile returns the path of the key that belongs to the server's certificate.
func keyFile(s *servertest.RedisServer) string {
	return filepath.Join(filepath.Dir(s.CAFile()), "key.pem")
}

// shortDir returns a folder whose name is short enough for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dibs")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
