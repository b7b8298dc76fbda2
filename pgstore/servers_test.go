package pgstore

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/storetest"
)

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	if os.Getenv(childURL) != "" {
		beChild()
		return
	}
	flag.Parse()
	// Tests that are parallel mostly wait, for servers and for time.
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	code := m.Run()
	scope.Close()
	os.Exit(code)
}

// shared is a server that outlives a busy machine. Whoever uses it has a schema of
// its own, see ownSchema.
var shared = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 400})
})

// sharedPooler is a PgBouncer in transaction mode before it. A login that fails must not
// cost 15 s. And sessions that go through hundreds of schemas remember all their plans:
// with each table that is made anywhere they look through them, which took them
// seconds in the end, in which they answered nobody.
var sharedPooler = sync.OnceValue(func() *servertest.PgBouncerServer {
	return servertest.PgBouncer(scope, shared(), &servertest.PgBouncerOptions{
		PoolSize: 60,
		Settings: []string{"server_login_retry = 1", "server_lifetime = 5"},
	})
})

var schemas atomic.Int64

// ownSchema returns a schema that nobody else in this run has.
func ownSchema() string { return fmt.Sprintf("own%d", schemas.Add(1)) }

// ownNames returns the options of a store that has a schema of its own, and names of its
// own in it: what functions in hundreds of schemas are called is slow to look up.
func ownNames() *Options {
	name := ownSchema()
	return &Options{Schema: name, Prefix: "in_" + name}
}

// namesOf returns the options of another store with the tables of this one.
func namesOf(s *Store) *Options { return &Options{Schema: s.names.schema, Prefix: s.names.prefix} }

// open opens a store as a process of its own would, with its tables, when the server lets
// it in: a pooler refuses everybody for a second after the server has refused it once, as
// one does that begins. The store ends with the test.
func open(t testing.TB, url string, o *Options) *Store {
	t.Helper()
	config, d, err := parse(url, o)
	if err != nil {
		t.Fatal(err)
	}
	// Not by Options.Migrate, and more than once: on a busy machine all that may take
	// longer than Open does.
	var s *Store
	eventually(t, time.Minute, "the store is open", func() bool {
		if err = migrateOnce(t.Context(), config, d); err == nil {
			s, err = Open(t.Context(), url, o)
		}
		if refused := new(pgconn.ConnectError); errors.As(err, &refused) {
			t.Log(err)
			<-time.After(100 * time.Millisecond) // so that not hundreds of them are told
		} else if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// migrateOnce brings the tables up to date on a connection of its own.
func migrateOnce(ctx context.Context, config *pgxpool.Config, o *Options) error {
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	return errors.Join(Migrate(ctx, conn, o), conn.Close(ctx))
}

// newClient returns a dibs client of the store; it ends with the test.
func newClient(t testing.TB, s dibs.Store, o *dibs.Options) *dibs.Client {
	t.Helper()
	c, err := dibs.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// restarts reports whether the property that is tried restarts its backend.
func restarts(t testing.TB) bool {
	return slices.ContainsFunc(storetest.Properties(), func(p storetest.Property) bool {
		return p.Name == path.Base(t.Name()) && slices.Contains(p.Needs, storetest.Restart)
	})
}

// work has two clients of the store do what clients do.
func work(t *testing.T, s *Store) {
	t.Helper()
	for i := range 8 {
		key := fmt.Sprint("key ", i)
		first, second := newClient(t, s, nil), newClient(t, s, nil)
		lease, err := first.Acquire(t.Context(), key, nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- untilAnswered(t, func() error {
				return second.Do(t.Context(), key, func(context.Context) error { return nil })
			})
		}()
		eventually(t, 30*time.Second, "somebody waits for "+key, func() bool {
			select {
			case err := <-done:
				t.Fatalf("who was to wait for %s does not: %v", key, err)
			default:
			}
			return queued(t, s, key)
		})
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		got, err := dibs.Once(t.Context(), first, "once "+key, nil, func(context.Context) (int, error) { return i, nil })
		if err != nil || got != i {
			t.Errorf("%d, %v", got, err)
		}
	}
}

// untilAnswered calls f again while the store does not answer, as it may on a busy
// machine, and tells of that.
func untilAnswered(t testing.TB, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, dibs.ErrStore) || t.Context().Err() != nil {
			return err
		}
		t.Log(err)
	}
}

// untilListening waits for a key that is held until the store listens.
func untilListening(t testing.TB, s *Store, c *dibs.Client, key string) {
	t.Helper()
	for begun := time.Now(); s.waiting.process.Load() == 0; {
		if time.Since(begun) > 30*time.Second {
			t.Fatal("it does not listen")
		}
		if _, err := c.Acquire(t.Context(), key, &dibs.AcquireOptions{Wait: time.Millisecond}); !errors.Is(err, dibs.ErrHeld) {
			t.Fatal(err)
		}
	}
}

// lockKeys keeps the rows of all keys of a store on the shared server locked.
func lockKeys(t testing.TB, s *Store) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), shared().URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(s.names.sql("BEGIN; SELECT * FROM @key FOR UPDATE"))
	return func() { exec("ROLLBACK") }
}

// longWaits asks who waits for a lock for more than a second, and for whom.
const longWaits = `SELECT format('%s has waited %s for a lock of %s, which is %s (%s, %s): %s',
	w.pid, now() - w.query_start, h.pid, h.state, h.wait_event_type, h.wait_event, left(h.query, 100))
FROM pg_stat_activity w, unnest(pg_blocking_pids(w.pid)) AS b (pid) JOIN pg_stat_activity h ON h.pid = b.pid
WHERE w.wait_event_type = 'Lock' AND w.query_start < now() - interval '1 second' LIMIT 8`

// watchLocks tells of a test that fails who waited for long on the shared server.
func watchLocks(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	conn, err := pgx.Connect(ctx, shared().URL())
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for len(seen) < 64 {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			rows, _ := conn.Query(ctx, longWaits)
			now, _ := pgx.CollectRows(rows, pgx.RowTo[string])
			seen = append(seen, now...)
		}
	})
	t.Cleanup(func() {
		stop()
		watching.Wait()
		_ = conn.Close(context.Background())
		if t.Failed() && len(seen) > 0 {
			t.Logf("on the server:\n\t%s", strings.Join(seen, "\n\t"))
		}
	})
}

// awaitQueue waits until somebody waits for a key.
func awaitQueue(t testing.TB, s *Store, key string) {
	t.Helper()
	eventually(t, 30*time.Second, "somebody waits for "+key, func() bool { return queued(t, s, key) })
}

// queued reports whether somebody waits for a key.
func queued(t testing.TB, s *Store, key string) bool {
	t.Helper()
	answers := make([]dibs.Answer, 1)
	err := s.Claim(t.Context(), []dibs.Claim{{Key: dibs.Key{Name: key}, Mode: dibs.Look, Permits: 1}}, answers)
	if err != nil {
		t.Logf("a look at %s: %v", key, err)
		<-time.After(time.Second) // so that not thousands of them are told
	}
	return err == nil && answers[0].Ahead > 0
}

// eventually waits until something is so.
func eventually(t testing.TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-tick.C
	}
}

// leastRights is what the README says a user needs.
const leastRights = `GRANT USAGE ON SCHEMA own TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON @key, @holder, @waiter, @progress TO app;
GRANT SELECT, UPDATE ON @meta TO app;`

// transactionRights is what the README says that the user of transactions needs.
const transactionRights = `GRANT USAGE ON SCHEMA own TO app;
GRANT EXECUTE ON FUNCTION @settle_in, @reserve_in TO app;`
