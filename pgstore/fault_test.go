package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestOpenErrors: what is wrong with a server is said when a store is opened, with
// the cure.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{Password: "secret"})
	server.Query("CREATE ROLE nobody LOGIN PASSWORD 'secret'; CREATE SCHEMA newer")
	if err := func() error {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		return errors.Join(Migrate(t.Context(), conn, nil), Migrate(t.Context(), conn, &Options{Schema: "newer"}))
	}(); err != nil {
		t.Fatal(err)
	}
	server.Query("UPDATE newer.dibs_meta SET version = 99")
	at := func(was, is string) string { return strings.Replace(server.URL(), was, is, 1) }
	for name, test := range map[string]struct {
		url  string
		o    *Options
		is   error
		says string
	}{
		"no URL":       {url: "mysql://x", is: ErrURL, says: "write postgres://"},
		"no number":    {url: at(":"+server.Addr()[10:], ":port"), is: ErrURL},
		"wrong wake":   {url: server.URL() + "&wake=up", is: ErrURL, says: "auto, listen or poll"},
		"nobody there": {url: at(server.Addr(), "127.0.0.1:1"), is: ErrUnreachable},
		"password":     {url: at("secret", "wrong"), is: ErrUnauthorized, says: "password is wrong"},
		"database":     {url: at("/postgres?", "/none?"), is: ErrUnsupported, says: "create the database"},
		"rights":       {url: at("postgres:secret", "nobody:secret"), is: ErrUnauthorized, says: "README"},
		"no tables":    {url: server.URL(), o: &Options{Prefix: "none"}, is: ErrNotMigrated, says: "dibs migrate"},
		"newer tables": {url: server.URL() + "&schema=newer", is: ErrNewer, says: "version 99"},
		"may not make": {url: at("postgres:secret", "nobody:secret") + "&schema=mine&migrate=true", is: ErrUnauthorized},
	} {
		s, err := Open(t.Context(), test.url, test.o)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want %v, and %q", name, err, test.is, test.says)
		}
	}
	server.Query("ALTER SYSTEM SET default_transaction_read_only = on")
	server.Query("SELECT pg_reload_conf()")
	eventually(t, 10*time.Second, "ErrReadOnly", func() bool {
		s, err := Open(t.Context(), server.URL(), nil)
		if err == nil {
			s.Close()
		}
		return errors.Is(err, ErrReadOnly)
	})
}

// TestIsolation: at another isolation level the functions refuse to work.
func TestIsolation(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	_, err := Open(t.Context(), shared().URL()+"&default_transaction_isolation=serializable", namesOf(s))
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "ALTER ROLE") {
		t.Errorf("%v, want ErrUnsupported with the cure", err)
	}
}

// TestPooler: behind a pooler nobody listens, and who insists on it is told at
// once.
func TestPooler(t *testing.T) {
	t.Parallel()
	watchLocks(t)
	s := open(t, sharedPooler().URL(), ownNames())
	if !s.pooled.Load() || !s.unprepared.Load() {
		t.Error("the pooler was not noticed")
	}
	work(t, s)
	if _, err := Open(t.Context(), sharedPooler().URL(), &Options{Schema: s.names.schema, Prefix: s.names.prefix, Wake: WakeListen}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	found, err := s.Check(t.Context())
	if err != nil || len(found) == 0 {
		t.Fatalf("%v, %v", found, err)
	}
	if !slices.ContainsFunc(found, func(f dibs.Finding) bool { return f.Name == "pooler" }) {
		t.Errorf("found %+v, want the pooler among it", found)
	}
}

// TestDeadlocks: calls about the same keys, in whatever order they come, do not
// block each other for ever.
func TestDeadlocks(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	schema := ownSchema()
	stores := []*Store{open(t, server.URL(), &Options{Schema: schema}), open(t, server.URL(), &Options{Schema: schema})}
	var all sync.WaitGroup
	for g := range 8 {
		s := stores[g%len(stores)]
		all.Go(func() {
			for range 40 {
				n := 24
				claims, settlements, renewals := make([]dibs.Claim, n), make([]dibs.Settlement, n), make([]dibs.Renewal, n)
				for i, k := range rand.Perm(n) {
					key, token := dibs.Key{Name: fmt.Sprint(k)}, dibs.NewToken()
					claims[i] = dibs.Claim{
						Key: key, Token: token, Mode: dibs.Mode(rand.IntN(3)), TTL: time.Second, Place: time.Second,
						Permits: 1, MaxAge: time.Duration(rand.IntN(2)) * time.Hour,
					}
					settlements[i] = dibs.Settlement{Key: key, Token: token, Outcome: dibs.Outcome(rand.IntN(4)), Retention: time.Millisecond}
					renewals[i] = dibs.Renewal{Key: key, Token: token, TTL: time.Second}
				}
				errs := make([]error, n)
				if err := s.Claim(t.Context(), claims, make([]dibs.Answer, n)); err != nil {
					t.Error(err)
				}
				if err := s.Renew(t.Context(), renewals, errs); err != nil {
					t.Error(err)
				}
				if err := s.Settle(t.Context(), settlements, errs); err != nil {
					t.Error(err)
				}
				if _, err := s.Prune(t.Context(), 10); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	eventually(t, 10*time.Second, "the server's own count", func() bool {
		return server.Query("SELECT xact_commit > 100 FROM pg_stat_database WHERE datname = 'postgres'")[0][0] == "t"
	})
	if n := server.Query("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'")[0][0]; n != "0" {
		t.Errorf("%s deadlocks", n)
	}
}

// TestLockedRow: where somebody keeps the row of a key locked, the calls about it
// fail, after a while, and no others.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	claim := func(names ...string) ([]dibs.Answer, []dibs.Claim) {
		t.Helper()
		answers, claims := make([]dibs.Answer, len(names)), make([]dibs.Claim, len(names))
		for i, name := range names {
			claims[i] = dibs.Claim{Key: dibs.Key{Name: name}, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}
		}
		if err := s.Claim(t.Context(), claims, answers); err != nil {
			t.Fatal(err)
		}
		return answers, claims
	}
	_, claims := claim("locked")
	unlock := lockKeys(t, s)
	start := time.Now()
	settlements := []dibs.Settlement{{Key: claims[0].Key, Token: claims[0].Token}, {Key: dibs.Key{Name: "other"}, Token: dibs.NewToken()}}
	errs := make([]error, 2)
	if err := s.Settle(t.Context(), settlements, errs); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(errs[0], ErrLocked) || errs[1] != dibs.ErrLost {
		t.Errorf("%v; want ErrLocked, and ErrLost for the other key", errs)
	}
	answers := make([]dibs.Answer, 2)
	queues := []dibs.Claim{
		{Key: claims[0].Key, Token: dibs.NewToken(), Mode: dibs.Queue, TTL: time.Minute, Place: time.Minute, Permits: 1},
		{Key: dibs.Key{Name: "free"}, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1},
	}
	if err := s.Claim(t.Context(), queues, answers); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(answers[0].Err, ErrLocked) || answers[1].State != dibs.Granted {
		t.Errorf("%+v; want ErrLocked, and a grant of the other key", answers)
	}
	if took := time.Since(start); took > 12*time.Second {
		t.Errorf("it took %v", took)
	}
	unlock()
	if err := s.Settle(t.Context(), settlements[:1], errs[:1]); err != nil || errs[0] != nil {
		t.Errorf("after that: %v, %v", err, errs[0])
	}
}

// TestLostConnections: a connection that was ended while nothing happened on it is
// no failure of the next call.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL()+"&application_name=lost", ownNames())
	c := newClient(t, s, nil)
	for i := range 5 {
		lease, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{NoWait: true})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		endConnections(t, s)
		if err := lease.Save(t.Context(), []byte("half")); err != nil {
			t.Fatalf("round %d: save: %v", i, err)
		}
		endConnections(t, s)
		if err := lease.Release(); err != nil {
			t.Fatalf("round %d: release: %v", i, err)
		}
		endConnections(t, s)
	}
}

// endConnections ends all connections of a store that has a name of its own.
func endConnections(t *testing.T, s *Store) {
	t.Helper()
	name := s.config.ConnConfig.RuntimeParams["application_name"]
	shared().Query(fmt.Sprintf("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '%s'", name))
}

// TestTerminatedUnderLoad: whatever connections are ended while many work, no two
// hold a key, and nothing is left behind.
func TestTerminatedUnderLoad(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	crowd := newCrowd(t, server.URL())
	for range 60 {
		server.Query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 2`)
		crowd.goOn(3)
	}
	crowd.end()
}

// TestServerRestarts: a server that crashes and comes back while many work loses no
// lease and no record.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, nil)
	crowd := newCrowd(t, server.URL())
	for range 3 {
		server.Kill()
		server.Restart()
		crowd.goOn(50)
	}
	crowd.end()
}

// crowd is clients of two stores that do what clients do, again and again.
type crowd struct {
	t     *testing.T
	s     *Store
	done  atomic.Int64 // how much
	stop  context.CancelFunc
	group sync.WaitGroup
}

// newCrowd makes one; its stores come by these addresses, the last of which is one
// where nothing goes wrong on the way.
func newCrowd(t *testing.T, urls ...string) *crowd {
	t.Helper()
	schema := ownSchema()
	url := urls[len(urls)-1]
	c := &crowd{t: t, s: open(t, url, &Options{Schema: schema})}
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	var inside [4]atomic.Pointer[context.Context]
	var answers sync.Map
	var number atomic.Int64
	clients := []*dibs.Client{
		newClient(t, c.s, &dibs.Options{TTL: 2 * time.Second}),
		newClient(t, open(t, urls[0], &Options{Schema: schema}), &dibs.Options{TTL: 2 * time.Second}),
	}
	for g := range 16 {
		client := clients[g%len(clients)]
		c.group.Go(func() {
			for ctx.Err() == nil {
				n := rand.IntN(len(inside))
				err := client.Do(ctx, fmt.Sprint("lock ", n), func(ctx context.Context) error {
					if other := inside[n].Swap(&ctx); other != nil && ctx.Err() == nil && (*other).Err() == nil {
						t.Error("two hold a key")
					}
					inside[n].CompareAndSwap(&ctx, nil)
					return nil
				})
				key := fmt.Sprint("once ", rand.IntN(200))
				mine := fmt.Sprint(number.Add(1))
				got, wrong := dibs.Once(ctx, client, key, nil, func(context.Context) (string, error) { return mine, nil })
				if wrong == nil {
					if first, there := answers.LoadOrStore(key, got); there && first != got {
						t.Errorf("%s was answered %v and %v", key, first, got)
					}
				}
				if err == nil && wrong == nil {
					c.done.Add(1)
				}
			}
		})
	}
	return c
}

// goOn waits until that much more is done.
func (c *crowd) goOn(more int64) {
	c.t.Helper()
	want := c.done.Load() + more
	eventually(c.t, 30*time.Second, "work goes on", func() bool { return c.done.Load() >= want })
}

// end ends it, and sees to it that nobody is left.
func (c *crowd) end() {
	c.t.Helper()
	c.stop()
	c.group.Wait()
	eventually(c.t, 20*time.Second, "nothing but records is left", func() bool {
		for e, err := range c.s.List(c.t.Context(), dibs.Query{}) {
			if err != nil || e.Condition != dibs.ConditionDone && e.Condition != dibs.ConditionAbandoned {
				return false
			}
		}
		return true
	})
}

// TestExhausted: an application that uses up its pool, and then all connections
// of the server, does not keep leases from being renewed and released.
func TestExhausted(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{MaxConnections: 30})
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s, err := New(t.Context(), pool, &Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range config.MaxConns {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	client := newClient(t, s, &dibs.Options{TTL: 3 * time.Second})
	start := time.Now()
	lease, err := client.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := client.Acquire(t.Context(), "l", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Release(); err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			if !errors.Is(explain(err), ErrCrowded) {
				t.Errorf("%v, want ErrCrowded", explain(err))
			}
			break
		}
		defer conn.Close(context.Background())
	}
	eventually(t, 20*time.Second, "the lease is renewed", func() bool { return time.Since(lease.Until()) < 0 && lease.Until().Sub(start) > 7*time.Second })
	if err := context.Cause(lease.Context()); err != nil {
		t.Errorf("the lease ended: %v", err)
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}
