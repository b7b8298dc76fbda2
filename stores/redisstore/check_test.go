package redisstore

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestCheck: what is wrong with a server's set-up is found, and nothing else.
func TestCheck(t *testing.T) {
	t.Parallel()
	sound := servertest.RedisOptions{Persistence: servertest.AOF}
	tests := []checkTest{
		{"sound", func(t *testing.T) string { return servertest.Redis(t, &sound).URL() }, nil},
		{"in use", func(t *testing.T) string {
			url := servertest.Redis(t, &sound).URL()
			work(t, open(t, url, nil))
			return url
		}, nil},
		{"nothing kept", func(t *testing.T) string { return servertest.Redis(t, nil).URL() }, []found{
			{"persistence", dangerous, "keeps nothing on disk"},
		}},
		{"snapshots", func(t *testing.T) string {
			return servertest.Redis(t, &servertest.RedisOptions{Persistence: servertest.RDB}).URL()
		}, []found{
			{"persistence", advice, "from time to time only"},
		}},
		{"log without sync", func(t *testing.T) string {
			o := sound
			o.Directives = []string{"appendfsync no"}
			return servertest.Redis(t, &o).URL()
		}, []found{{"persistence", advice, "appendfsync is no"}}},
		{"eviction", func(t *testing.T) string {
			o := sound
			o.Policy, o.MaxMemory = "volatile-ttl", 64<<20
			return servertest.Redis(t, &o).URL()
		}, []found{{"eviction", dangerous, "volatile-ttl"}}},
		{"eviction without a limit", func(t *testing.T) string {
			o := sound
			o.Policy = "allkeys-lru"
			return servertest.Redis(t, &o).URL()
		}, []found{{"eviction", advice, "allkeys-lru"}}},
		{"nearly full", func(t *testing.T) string {
			o := sound
			o.MaxMemory = 60 << 20
			s := servertest.Redis(t, &o)
			s.Must("SETRANGE", "ballast", 55<<20, "x")
			return s.URL()
		}, []found{{"memory", advice, "% of maxmemory"}}},
		{"full", func(t *testing.T) string {
			s := servertest.Redis(t, &sound)
			s.Must("CONFIG", "SET", "maxmemory", 1<<20)
			return s.URL()
		}, []found{{"writes", dangerous, "OOM"}, {"memory", advice, "% of maxmemory"}}},
		{"disk that cannot be written", func(t *testing.T) string {
			s := servertest.Redis(t, &sound)
			failToSave(t, s)
			return s.URL()
		}, []found{{"persistence", dangerous, "failed to save its data"}, {"writes", dangerous, "MISCONF"}}},
		{"replicas that are none", func(t *testing.T) string {
			return servertest.Redis(t, &sound).URL() + "?replicas=2"
		}, []found{{"replication", dangerous, "2 replicas must acknowledge each grant, but there are 0"}}},
		{"clock set back", func(t *testing.T) string {
			s := servertest.Redis(t, &sound)
			s.Must("SET", "dibs:fence", time.Now().Add(time.Hour+30*time.Second).UnixMicro())
			return s.URL()
		}, []found{{"clock", dangerous, "1h0m"}}},
		{"prefix of another", func(t *testing.T) string {
			s := servertest.Redis(t, &sound)
			s.Must("SET", "dibs:session:1", "x")
			s.Must("SET", "dibs:{000}:x y:t", "x")
			s.Must("SET", "dibsy", "x") // not the prefix
			return s.URL()
		}, []found{{"prefix", advice, "2 names that begin with dibs:"}}},
		{"no right to subscribe", func(t *testing.T) string {
			o := sound
			o.Users = []string{"app on >secret ~dibs:* &dibs:* +@all -subscribe"}
			return strings.Replace(servertest.Redis(t, &o).URL(), "://", "://app:secret@", 1)
		}, []found{{"wake-ups", advice, "NOPERM"}}},
		{"no right to look", func(t *testing.T) string {
			o := sound
			o.Users = []string{"app on >secret ~dibs:* &dibs:* +@all -info -config"}
			return strings.Replace(servertest.Redis(t, &o).URL(), "://", "://app:secret@", 1)
		}, []found{
			{"eviction", unchecked, "is unknown"}, {"persistence", unchecked, "is unknown"},
			{"product", unchecked, "does not tell this user what it is"}, {"replication", unchecked, "is unknown"},
		}},
		// As managed servers are.
		{"no configuration", func(t *testing.T) string {
			o := servertest.RedisOptions{Policy: "volatile-lru", MaxMemory: 64 << 20, Directives: []string{`rename-command CONFIG ""`}}
			return servertest.Redis(t, &o).URL()
		}, []found{{"eviction", dangerous, "volatile-lru"}, {"persistence", advice, "at best only the latest"}}},
	}
	checks(t, tests)
}

// checkTest is a set-up, and what Check is to find in it.
type checkTest struct {
	name string
	url  func(*testing.T) string
	want []found
}

type found struct {
	name     string
	severity store.Severity
	what     string
}

const dangerous, advice, unchecked = store.SeverityDangerous, store.SeverityAdvice, store.SeverityUnchecked

func checks(t *testing.T, tests []checkTest) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, test.url(t), nil)
			for range 2 { // the second look has the first to compare with
				got, err := s.Check(t.Context())
				testkit.Must(t, err)
				if !slices.EqualFunc(got, test.want, func(f store.Finding, w found) bool {
					return f.Name == w.name && f.Severity == w.severity && strings.Contains(f.What, w.what) && f.Cure != ""
				}) {
					t.Errorf("found\n%s\nwant %v", list(got), test.want)
				}
			}
		})
	}
}

func list(all []store.Finding) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "  %s, %s: %s %s\n", f.Name, f.Severity, f.What, f.Cure)
	}
	return b.String()
}

// TestCheckClocks: clocks of servers that are apart are noticed, and not those that are a little off.
func TestCheckClocks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	clock := func(after, off time.Duration) storekit.ClockReading {
		return storekit.ClockReading{At: now.Add(after), Shows: now.Add(after + off).UnixMicro(), Vague: time.Millisecond}
	}
	a, b := &server{addr: "a", clock: clock(0, 0)}, &server{addr: "b", clock: clock(time.Second, 100*time.Millisecond)}
	d := &server{addr: "d", clock: clock(0, -3*time.Second)}
	for _, test := range []struct {
		servers []*server
		want    string
	}{
		{[]*server{a}, ""},
		{[]*server{a, b}, ""},
		{[]*server{a, d, b}, "The clocks of d and b differ by 3.098s"},
	} {
		c := &checkup{where: map[store.Finding][]string{}}
		checkApart(c, test.servers)
		if got := list(c.findings()); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("found %q, want %q", got, test.want)
		}
	}
}

// TestCheckRemembersClocks: a look compares the server's clock with what the look before
// saw.
func TestCheckRemembersClocks(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	for _, want := range []bool{false, true} {
		got, err := s.Check(t.Context())
		testkit.Must(t, err)
		if found := strings.Contains(list(got), "the server's clock was set"); found != want {
			t.Errorf("found\n%s", list(got))
		}
		s.clocks.Range(func(_, clock any) bool { // as if it had been an hour behind
			now := time.Now()
			clock.(*storekit.Clock).Check(&storekit.Checkup{}, storekit.ClockReading{At: now, Shows: now.Add(-time.Hour).UnixMicro()})
			return true
		})
	}
}

// TestCheckVersion: a server that is too old is found.
func TestCheckVersion(t *testing.T) {
	for version, want := range map[string]bool{"6.0.16": true, "6.2.0": false, "7.4.1": false, "10.0.0": false, "8.1.0-rc1": false, "": false} {
		c := &checkup{where: map[store.Finding][]string{}}
		s := &Store{}
		s.checkVersion(c, &server{hello: map[string]string{"version": version, "mode": "standalone"}})
		if got := c.findings(); (len(got) == 1) != want {
			t.Errorf("%s: found\n%s", version, list(got))
		}
	}
	c := &checkup{where: map[store.Finding][]string{}}
	s := &Store{names: namer{cluster: true}}
	s.checkVersion(c, &server{hello: map[string]string{"version": "6.2.14", "mode": "cluster"}})
	(&Store{}).checkVersion(c, &server{hello: map[string]string{"version": "7.0.0", "mode": "cluster"}})
	if got := c.findings(); len(got) != 2 {
		t.Errorf("found\n%s", list(got))
	}
}

// TestCheckSlowly: a server that takes longer than a second to connect allows subscriptions.
func TestCheckSlowly(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	s := overClient(t, rueidis.ClientOption{
		InitAddress: []string{sharedRedis().Addr()}, DisableCache: true, ForceSingleClient: true, PipelineMultiplex: -1,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if slow.Load() {
				<-time.After(1200 * time.Millisecond)
			}
			return d.DialContext(ctx, "tcp", addr)
		},
	})
	mustGrant(t, s, lock("k"))
	slow.Store(true)
	if got, err := s.Check(t.Context()); err != nil || strings.Contains(list(got), findWakeUps) {
		t.Errorf("found\n%s, %v", list(got), err)
	}
}

// TestCheckUnreachable: a server that does not answer is an error, not a finding.
func TestCheckUnreachable(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	server.Kill()
	if got, err := s.Check(t.Context()); err == nil || got != nil {
		t.Errorf("found\n%s, %v", list(got), err)
	}
}

// TestProducts: a product on which leases are not exclusive is refused by its name before a key is
// taken, and Check names one that is not tested. Behind each of them is a Redis, which answers all
// but INFO.
func TestProducts(t *testing.T) {
	t.Parallel()
	for _, p := range product.Redis.Products {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			var info strings.Builder
			info.WriteString("# Server\r\nredis_version:7.4.0\r\n")
			for _, sign := range p.Signs {
				info.WriteString(sign.Asked + ":" + sign.Says + "\r\n")
			}
			url := disguise(t, info.String())
			sqltest.Product(t, &p, ErrUnsupported,
				func() (*Store, error) { return Open(t.Context(), url, nil) }, func() *Store { return open(t, url, nil) })
		})
	}
}

// TestRefusedProductOfAClient: New asks nothing, so Check finds what Open refuses.
func TestRefusedProductOfAClient(t *testing.T) {
	t.Parallel()
	url := disguise(t, "redis_version:6.3.4\r\nmvcc_depth:0\r\nrole:active-replica\r\n")
	client, err := rueidis.NewClient(rueidis.MustParseURL(url + "?client_cache=0"))
	testkit.Must(t, err)
	t.Cleanup(client.Close)
	s, err := New(client, nil)
	testkit.Must(t, err)
	found, err := s.Check(t.Context())
	testkit.Must(t, err)
	if !slices.ContainsFunc(found, func(f store.Finding) bool {
		return f.Name == "product" && f.Severity == store.SeverityDangerous && strings.Contains(f.What, "a KeyDB active replica")
	}) {
		t.Errorf("found\n%s", list(found))
	}
}

// TestUnknownProduct: a product that no table has runs, and Check says that nothing is known of it.
func TestUnknownProduct(t *testing.T) {
	t.Parallel()
	sqltest.FindsProduct(t, open(t, disguise(t, "shiny_version:3.1\r\n"), nil), "does not tell this user what it is", store.SeverityUnchecked)
}

// disguise returns a URL of the shared server. A proxy in between replaces INFO by ECHO of the text,
// which has an answer of the same type.
func disguise(t *testing.T, info string) string {
	t.Helper()
	server := sharedRedis()
	return server.URLAt(testkit.Serve(t, func(_ int, c *net.TCPConn) { relay(c, server.Addr(), info) }))
}

// relay carries a connection to a server, command by command.
func relay(client net.Conn, addr, info string) {
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	var back sync.WaitGroup
	defer back.Wait()
	defer server.Close()
	back.Go(func() { _, _ = io.Copy(client, server); client.Close() })
	from := bufio.NewReader(client)
	// number reads the line of a length.
	number := func() (int, error) {
		line, err := from.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	for {
		n, err := number()
		if err != nil {
			return
		}
		command := make([]string, n)
		for i := range command {
			size, err := number()
			if err != nil {
				return
			}
			word := make([]byte, size+2)
			if _, err := io.ReadFull(from, word); err != nil {
				return
			}
			command[i] = string(word[:size])
		}
		if strings.EqualFold(command[0], "INFO") {
			command = []string{"ECHO", info}
		}
		var text strings.Builder
		text.WriteString(fmt.Sprintf("*%d\r\n", len(command)))
		for _, word := range command {
			text.WriteString(fmt.Sprintf("$%d\r\n%s\r\n", len(word), word))
		}
		if _, err := io.WriteString(server, text.String()); err != nil {
			return
		}
	}
}
