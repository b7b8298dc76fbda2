package redisstore

import (
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
)

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) { testkit.Main(m, children, scope.Close) }

// sharedRedis is the server of every test that does not restart, limit, configure or
// count on its server. Each test has a prefix of its own, see ownURL.
var sharedRedis = sync.OnceValue(func() *servertest.RedisServer { return servertest.Redis(scope, nil) })

// ownURL returns the URL of the shared server with a prefix that no other test has.
func ownURL() string { return sharedRedis().URL() + "?prefix=" + testkit.Own() }

// open opens a store as a process of its own would. It ends with the test. No machine is too
// slow for its calls.
func open(t testing.TB, url string, o *Options) *Store {
	t.Helper()
	return openWithin(t, url, o, testkit.Limit)
}

// openWithin is open with another patience; 0: that of Open.
func openWithin(t testing.TB, url string, o *Options, patience time.Duration) *Store {
	t.Helper()
	var own Options
	if o != nil {
		own = *o
	}
	own.patience = patience
	s, err := Open(t.Context(), url, &own)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, s.Close()) })
	return s
}

// newClient returns a dibs client of the store; it ends with the test. No machine is too slow
// for its calls.
func newClient(t testing.TB, s store.Store, o *dibs.Options) *dibs.Client {
	t.Helper()
	var own dibs.Options
	if o != nil {
		own = *o
	}
	own.Timeout = testkit.Limit
	c, err := dibs.New(s, &own)
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Log(err)
		}
	})
	return c
}

// overClient returns a store over an application's own client, which gets pushed grants.
func overClient(t *testing.T, o rueidis.ClientOption) *Store {
	t.Helper()
	client, err := rueidis.NewClient(o)
	testkit.Must(t, err)
	t.Cleanup(client.Close)
	s, err := New(client, &Options{Prefix: testkit.Own(), patience: testkit.Limit})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	t.Cleanup(s.Notify(func(store.Token, store.Answer) {}))
	return s
}

// subscribed reports whether a server counts a store as a listener for a key.
func subscribed(s *Store, server *servertest.RedisServer, k store.Key) bool {
	ask := "NUMSUB"
	if s.names.cluster {
		ask = "SHARDNUMSUB"
	}
	return server.Must("PUBSUB", ask, s.names.channel(s.names.group(k), s.subscriber.process)).([]any)[1] == int64(1)
}

// key returns a key of the namespace that most tests use.
func key(name string) store.Key { return store.Key{Namespace: "test", Name: name} }

// lock returns a claim for a lock that outlives the test, however slow that is.
func lock(name string, edits ...func(*store.Claim)) store.Claim {
	c := store.Claim{Key: key(name), Token: store.NewToken(), Permits: 1, Weight: 1, TTL: time.Hour, PlaceTTL: time.Hour}
	for _, e := range edits {
		e(&c)
	}
	return c
}

// queued makes the claim wait for its turn.
func queued(c *store.Claim) { c.Mode = store.Queue }

// answered accepts every record.
func answered(c *store.Claim) { c.MaxAge = store.AnyAge }

// claim makes one claim.
func claim(t testing.TB, s *Store, c store.Claim) (store.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	answers := make([]store.Answer, 1)
	err := s.Claim(ctx, []store.Claim{c}, answers)
	return answers[0], err
}

// settle settles one claim.
func settle(t testing.TB, s *Store, c store.Claim, outcome store.Outcome) (answer, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	x := store.Settlement{Key: c.Key, Token: c.Token, Outcome: outcome}
	if outcome == store.Keep {
		x.Data, x.Retention = []byte("answer"), time.Minute
	}
	errs := make([]error, 1)
	err = s.Settle(ctx, []store.Settlement{x}, errs)
	return errs[0], err
}

// renew renews one claim.
func renew(t testing.TB, s *Store, c store.Claim) (answer, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	errs := make([]error, 1)
	err = s.Renew(ctx, []store.Renewal{{Key: c.Key, Token: c.Token, TTL: c.TTL}}, errs)
	return errs[0], err
}

// mustGrant makes one claim, which has to be granted.
func mustGrant(t testing.TB, s *Store, c store.Claim) store.Answer {
	t.Helper()
	a, err := claim(t, s, c)
	if err != nil || a.Err != nil || a.State != store.Granted {
		t.Fatalf("the claim was answered %+v, %v; it should be granted", a, err)
	}
	return a
}

// mustWait makes one claim, which has to get a place.
func mustWait(t testing.TB, s *Store, c store.Claim) store.Answer {
	t.Helper()
	a, err := claim(t, s, c)
	if err != nil || a.Err != nil || a.State != store.Held || !a.Queued {
		t.Fatalf("the claim was answered %+v, %v; it should wait", a, err)
	}
	return a
}

// mustListen makes one claim, which has to get a place, and sees to it that its
// process is notified of its turn.
func mustListen(t testing.TB, s *Store, c store.Claim) store.Answer {
	t.Helper()
	t.Cleanup(s.Notify(func(store.Token, store.Answer) {}))
	mustWait(t, s, c)
	testkit.Eventually(t, "the process is subscribed", func() bool { return s.subscriber.channel(s.names.group(c.Key)) != pending })
	return mustWait(t, s, c)
}

// mustBeConnected is mustListen, and sees to it that whatever the claim has the process do at
// the server is done: the subscription is checked, and each of the connections that a
// client has is there, of which it takes any for a call.
func mustBeConnected(t testing.TB, server *servertest.RedisServer, s *Store, c store.Claim) {
	t.Helper()
	mustListen(t, s, c)
	testkit.Eventually(t, "the subscription is checked", func() bool { return commandsOf(server)["pubsub|numsub"] > 0 })
	for range 100 { // of four connections at most
		mustWait(t, s, c)
	}
}

// mustSettle settles one claim, which has to work.
func mustSettle(t testing.TB, s *Store, c store.Claim, outcome store.Outcome) {
	t.Helper()
	if answer, err := settle(t, s, c, outcome); answer != nil || err != nil {
		t.Fatalf("settling was answered %v, %v", answer, err)
	}
}

// names returns the names that a server has, under a prefix.
func names(server *servertest.RedisServer, prefix string) []string {
	all, _ := server.Must("KEYS", prefix+":*").([]any)
	found := make([]string, len(all))
	for i, name := range all {
		found[i] = name.(string)
	}
	return found
}

// leftover returns the names of anything but fences, and fails the test when
// something but a fence has no expiry.
func leftover(t testing.TB, server *servertest.RedisServer, prefix string) []string {
	t.Helper()
	var left []string
	for _, name := range names(server, prefix) {
		if strings.HasSuffix(name, "fence") || strings.HasSuffix(name, "listed") {
			continue
		}
		if ttl := server.Must("PTTL", name); ttl == int64(-1) {
			t.Errorf("%q has no expiry", name)
		}
		left = append(left, name)
	}
	return left
}

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits
	conform(t, standalone(sharedRedis, servertest.RedisOptions{Persistence: servertest.AOF}))
}

// conform checks all properties on backends of one kind.
func conform(t *testing.T, subject func(testing.TB, time.Duration) *storetest.Subject) {
	storetest.Run(t, &storetest.Harness{
		New: subject,
		Lacks: map[storetest.Feature]string{
			storetest.Skew:   "it reads no clock of its process; see TestNoClock",
			storetest.Pruner: "the server forgets by itself what has ended",
		},
	})
}

// standalone returns backends on the server that all share. Those that restart theirs
// have servers of their own.
func standalone(shared func() *servertest.RedisServer, own servertest.RedisOptions) func(testing.TB, time.Duration) *storetest.Subject {
	return func(t testing.TB, turn time.Duration) *storetest.Subject {
		server := shared()
		if storetest.Restarts(t) {
			server = servertest.Redis(t, &own)
		}
		o := &Options{Prefix: testkit.Own(), pushedTTL: turn}
		wiped := func() { wipe(t, server, o.Prefix) }
		t.Cleanup(wiped) // what is left slows others' lists
		return &storetest.Subject{
			Open:    func() store.Store { return open(t, server.URL(), o) },
			Restart: func() { server.Kill(); server.Restart() },
			Wipe:    wiped,
		}
	}
}

// wipe has a server lose all that is under a prefix.
func wipe(t testing.TB, server *servertest.RedisServer, prefix string) {
	conn, err := server.Dial()
	if err != nil {
		t.Errorf("wiping: %v", err)
		return
	}
	defer conn.Close()
	for _, name := range names(server, prefix) {
		if _, err := conn.Do("DEL", name); err != nil {
			t.Errorf("wiping: %v", err)
			return
		}
	}
}

// children use the store with the URL in their argument. They end when their standard input does.
var children = testkit.Children{
	"waiters": childWaiters,
}

// waitedFor is the key that children wait for.
const waitedFor = "waited for"

// waitersOfProcess is how many waiters one process has.
const waitersOfProcess = 5

// childWaiters waits many times. It is meant to be killed.
func childWaiters(args []string) error {
	c, done, err := childClient(args[0])
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range waitersOfProcess {
		all.Go(func() {
			if lease, err := c.Acquire(ctx, waitedFor, nil); err == nil {
				_ = lease.Release()
			}
		})
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	return err
}

func childClient(url string) (c *dibs.Client, done func(), err error) {
	s, err := Open(context.Background(), url, &Options{patience: testkit.Limit})
	if err != nil {
		return nil, nil, err
	}
	c, err = dibs.New(s, &dibs.Options{Namespace: "test", Timeout: testkit.Limit})
	return c, func() { _, _ = c.Close(), s.Close() }, err
}
