package redisstore

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
