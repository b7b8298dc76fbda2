package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestParse: what a URL says is understood, and printed without its secrets.
func TestParse(t *testing.T) {
	tests := []struct {
		url, shown string
		holds      func(*Address) bool
	}{
		{"redis://localhost", "redis://localhost:6379", func(a *Address) bool {
			return a.kind == single && !a.tls && a.db == 0 && a.user == "" && a.password == ""
		}},
		{"redis://app:s%3fcret%25@h:1/3", "redis://h:1/3", func(a *Address) bool {
			return a.user == "app" && a.password == "s?cret%" && a.db == 3
		}},
		{"redis://:a@b/c#d@h", "redis://h:6379", func(a *Address) bool { return a.user == "" && a.password == "a@b/c#d" }},
		{"rediss://[::1]:7000/", "rediss://[::1]:7000/", func(a *Address) bool { return a.tls }},
		{"rediss://h?ca=a.pem&cert=c.pem&key=k.pem&server-name=n&skip-verify=true", "rediss://h:6379?ca=a.pem&cert=c.pem&key=k.pem&server-name=n&skip-verify=true", func(a *Address) bool {
			return a.ca == "a.pem" && a.cert == "c.pem" && a.key == "k.pem" && a.serverName == "n" && a.skipVerify
		}},
		{"redis+unix://:p@/run/redis%20x.sock?db=2", "redis+unix:///run/redis%20x.sock?db=2", func(a *Address) bool {
			return a.kind == socket && a.hosts[0] == "/run/redis x.sock" && a.db == 2 && a.password == "p"
		}},
		{
			"redis+sentinel://u:p@a,b:1,[::1]/my%2Fmaster/4?sentinel-user=su&sentinel-password=sp&prefix=x",
			"redis+sentinel://a:26379,b:1,[::1]:26379/my%2Fmaster/4?prefix=x",
			func(a *Address) bool {
				return a.kind == sentinels && a.master == "my/master" && a.db == 4 && a.user == "u" && a.password == "p" &&
					a.sentinelUser == "su" && a.sentinelPassword == "sp" && a.prefix == "x"
			},
		},
		{"rediss+sentinel://a/m", "rediss+sentinel://a:26379/m", func(a *Address) bool { return a.tls && a.kind == sentinels }},
		{"redis+cluster://a:1,b:2/0?replicas=2&replica-wait=250ms", "redis+cluster://a:1,b:2/0?replica-wait=250ms&replicas=2", func(a *Address) bool {
			return a.kind == cluster && slices.Equal(a.hosts, []string{"a:1", "b:2"}) && a.replicas == 2 && a.replicaWait == 250*time.Millisecond
		}},
		{"rediss+cluster://a", "rediss+cluster://a:6379", func(a *Address) bool { return a.tls && a.kind == cluster }},
	}
	for _, test := range tests {
		a, err := Parse(test.url)
		switch {
		case err != nil:
			t.Errorf("%s: %v", test.url, err)
		case a.String() != test.shown || !test.holds(a):
			t.Errorf("%s: %s %+v; want %s", test.url, a, a, test.shown)
		}
	}
}

// TestParseRefuses: what cannot be meant is refused with how to write it, and
// whatever slip there is, nothing that could be a password is repeated.
func TestParseRefuses(t *testing.T) {
	tests := []struct{ url, want string }{
		{"", "must begin with redis://"},
		{"secret", "must begin with redis://"},
		{"http://:secret@h", "must begin with redis://, rediss://"},
		{"redis:secret", "must begin with"},
		{"redis://", "the host is missing: redis://[USER:PASSWORD@]HOST"},
		{"redis://secret@h", "USER:PASSWORD or :PASSWORD"},
		{"redis://:secret", "a port must be a number"},
		{"redis://u:secret", "a port must be a number"},
		{"redis://u:sec/ret", "a port must be a number"},
		{"redis://:%secret@h", "%25"},
		{"redis://:sec?ret@h", "%3F"},
		{"redis://h:0", "1 to 65535"},
		{"redis://h:65536", "1 to 65535"},
		{"redis://::1", "[ADDRESS]:PORT"},
		{"redis://a,b", "several hosts"},
		{"redis://:secret@a:1:2", "[ADDRESS]:PORT"},
		{"redis://h/secret", "the database must be a number"},
		{"redis://h/-1", "the database must be a number"},
		{"redis://h/1/2", "the database must be a number"},
		{"redis+sentinel://h", "the sentinels' name of the master"},
		{"redis+sentinel://h/", "the sentinels' name of the master"},
		{"redis+sentinel://h,h/m", "twice"},
		{"redis+cluster://h/1", "only database 0"},
		{"redis+cluster://a,,b", "a name or an address"},
		{"redis://[", "a name or an address"},
		{"redis+unix://h/x", "no host"},
		{"redis+unix://", "the path of the socket is missing"},
		{"redis://h?db=1", `"db" is not a parameter of redis://; the parameters are prefix, replicas, replica-wait`},
		{"rediss://h?x=1", "the parameters are prefix, replicas, replica-wait, ca, cert, key, server-name, skip-verify"},
		{"redis+sentinel://h/m?x=1", "sentinel-user, sentinel-password"},
		{"redis://h?ca=x", `"ca" is not a parameter`},
		{"redis://h?prefix=a&prefix=b", "prefix must appear once"},
		{"redis://h?prefix=", "with a value"},
		{"redis://h?prefix=a%20b", "prefix: it must be 1 to 64 letters"},
		{"redis://h?replicas=-1", "replicas: it must be a number"},
		{"redis://h?replica-wait=1", "replica-wait: it must be a duration"},
		{"redis://h?replica-wait=1us", "at least 1ms"},
		{"redis://h?%zz", "NAME=VALUE"},
		{"rediss://h?skip-verify=maybe", "true or false"},
		{"rediss://h?cert=x", "cert and key belong together"},
	}
	for _, test := range tests {
		_, err := Parse(test.url)
		if !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: %v; want %q", test.url, err, test.want)
		}
	}
}

// TestURLAndOptions: what both say the same is fine, and what they say
// differently is refused.
func TestURLAndOptions(t *testing.T) {
	a, err := Parse("redis://h?prefix=one&replicas=2&replica-wait=2s")
	testkit.Must(t, err)
	for _, o := range []*Options{nil, {}, {Prefix: "one"}, {Replicas: 2, ReplicaWait: 2 * time.Second, MaxRecord: 7}} {
		got, err := a.amend(o)
		if err != nil || got.Prefix != "one" || got.Replicas != 2 || got.ReplicaWait != 2*time.Second || o != nil && got.MaxRecord != o.MaxRecord {
			t.Errorf("%+v: %+v, %v", o, got, err)
		}
	}
	for field, o := range map[string]*Options{
		"Options.Prefix": {Prefix: "two"}, "Options.Replicas": {Replicas: 1}, "Options.ReplicaWait": {ReplicaWait: time.Second},
	} {
		if _, err := a.amend(o); !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, url := range []string{
		"redis://user:secret@host:6379/1?prefix=a", "redis+sentinel://:secret@a,b/m/1?sentinel-password=secret",
		"rediss+cluster://[::1]:1,b?ca=x", "redis+unix://:secret@/a/b?db=1", "redis://:secret/x@y?z",
	} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		a, err := Parse(url)
		if err != nil {
			if !errors.Is(err, ErrURL) {
				t.Fatalf("%q: %v", url, err)
			}
			return
		}
		// What is printed is the same address without its secrets.
		shown := a.String()
		b, err := Parse(shown)
		if err != nil {
			t.Fatalf("%q is printed %q: %v", url, shown, err)
		}
		if b.password != "" || b.sentinelPassword != "" || !slices.Equal(a.hosts, b.hosts) || a.db != b.db || a.master != b.master || a.prefix != b.prefix {
			t.Fatalf("%q is printed %q: %+v, %+v", url, shown, a, b)
		}
	})
}

// kinds are the last letters of names; see lua/state.lua.
const kinds = "sqwrp"

// FuzzName: whatever bytes keys have, no two share a name, not even with the
// names of other parts, of another prefix and of fences; each name shows its key;
// and a cluster keeps all that belongs to a key in one slot.
func FuzzName(f *testing.F) {
	long := strings.Repeat("}{: \n\x00", store.MaxKey/6)
	for _, seed := range [][4]string{
		{"", "a", "", "b"},
		{"a", "b", "", "a b"},
		{"", " ", "", "  "},
		{"a", "b:s", "a", "b"},
		{"a", "b:s", "a", "b:r"},
		{"{", "}", "}", "{"},
		{":", ":", "", "::"},
		{"", "fence", "", ":fence"},
		{"wake:", "fence", "wake", ":fence"},
		{"", long, "", long[1:]},
		{strings.Repeat("~", store.MaxNamespace), long, strings.Repeat("~", store.MaxNamespace-1), "~ " + long[:store.MaxKey-4]},
		{"x", "\xff\xfe", "x", "\xff"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, ns1, name1, ns2, name2 string) {
		k1, k2 := store.Key{Namespace: ns1, Name: name1}, store.Key{Namespace: ns2, Name: name2}
		if k1.Validate() != nil || k2.Validate() != nil {
			return
		}
		taken := map[string]string{}
		take := func(name, what string) {
			t.Helper()
			if other, ok := taken[name]; ok && other != what {
				t.Fatalf("%q is the name of %s and of %s", name, other, what)
			}
			taken[name] = what
		}
		for _, prefix := range []string{"dibs", "dibs:", "dibs:fence", "d"} {
			for _, cluster := range []bool{false, true} {
				n := &namer{prefix: prefix, cluster: cluster}
				for _, k := range []store.Key{k1, k2} {
					state := n.state(k)
					tag, rest, ok := strings.Cut(strings.TrimPrefix(state, prefix+":{"), "}")
					if !ok || len(tag) != 3 || strings.ContainsAny(tag, "{}") || rest == "" {
						t.Fatalf("%q hashes as %q", state, tag)
					}
					fence, channel := n.fence(n.group(k)), n.channel(n.group(k), "0123456789abcdef")
					if cluster && (!strings.HasPrefix(fence, prefix+":{"+tag+"}:") || !strings.HasPrefix(channel, prefix+":{"+tag+"}:")) {
						t.Fatalf("%q and %q are in other slots than %q", fence, channel, state)
					}
					take(fence, "the fence "+fence)
					take(n.listed(n.group(k)), "the listed names beside "+fence)
					if listed := n.listed(n.group(k)); !n.isListed(listed) || !n.isOurs(listed) || n.isListed(fence) || n.isListed(state) {
						t.Fatalf("%q is not taken for the listed names", listed)
					}
					if !n.isFence(fence) {
						t.Fatalf("%q is not taken for a fence", fence)
					}
					for _, kind := range kinds {
						name := state[:len(state)-1] + string(kind)
						take(name, prefix+" "+k.Namespace+" "+k.Name+" "+string(kind))
						if got, ok := n.parse(name); !ok || got != k {
							t.Fatalf("%q is read as %q, %v; want %q", name, got, ok, k)
						}
						if n.isFence(name) || !n.isOurs(name) {
							t.Fatalf("%q is taken for a fence, or not for ours", name)
						}
					}
				}
			}
		}
	})
}

// TestNameOfOthers: names of other programs are not keys.
func TestNameOfOthers(t *testing.T) {
	n := &namer{prefix: "dibs"}
	for _, name := range []string{
		"", "dibs", "dibs:", "dibs:fence", "dibs:{", "dibs:{abc}:", "dibs:{abc}:x", "dibs:{abc}: :s", "dibs:{abc}:nospace:s",
		"dibs:{abc}:\x01 key:s", "dibs:{abcd}:a b:s", "other:{abc}:a b:s", "dibs:x:{abc}:a b:s",
		"dibs:{abc}:a " + strings.Repeat("x", store.MaxKey+1) + ":s",
	} {
		if k, ok := n.parse(name); ok {
			t.Errorf("%q is read as the key %q", name, k)
		}
	}
}
