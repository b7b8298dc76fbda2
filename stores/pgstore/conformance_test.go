package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/bysql"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits
	storetest.Run(t, &storetest.Harness{
		New: func(trial testing.TB, turn time.Duration) *storetest.Subject {
			server, o := serverFor(trial), ownNames()
			o.pushedTTL = turn
			trial.Cleanup(func() { checkListed(t, server, o) })
			return &storetest.Subject{
				Open:    func() store.Store { return open(trial, server.URL(), o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { dropSchema(server, o) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew: "it reads no clock of its process",
		},
	})
}

// serverFor returns the shared server, or another server to tests that restart it.
func serverFor(t testing.TB) *servertest.PostgresServer {
	if storetest.Restarts(t) {
		return servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	}
	return shared()
}

// checkListed fails the test if the column listed is not what the schema says it is. It says
// nothing of tables that were dropped.
func checkListed(t testing.TB, server *servertest.PostgresServer, o *Options) {
	t.Helper()
	wrong, err := server.Do(`SELECT encode(k, 'escape') FROM "` + o.Schema + `"."` + o.Prefix + `_key" WHERE listed <> (rec_ends = 0 OR token <> '')`)
	if err == nil && len(wrong) > 0 {
		t.Errorf("the column listed is wrong for the keys %v", wrong)
	}
}

// dropSchema has a server lose a store.
func dropSchema(server *servertest.PostgresServer, o *Options) {
	server.Query(`DROP SCHEMA "` + o.Schema + `" CASCADE`)
}

// openBySQL opens a store that speaks SQL, as an application that a pooler serves.
func openBySQL(t testing.TB, url string, o *Options) store.Store {
	t.Helper()
	other := open(t, url, o)
	db, err := sql.Open("pgx", url+"&default_query_exec_mode=simple_protocol")
	testkit.Must(t, err)
	db.SetMaxOpenConns(8)
	t.Cleanup(func() { _ = db.Close() })
	return bysql.New(db, `"`+o.Schema+`"."`+o.Prefix+"_", other)
}

// TestConformanceBySQL: leases by SQL keep the contract, beside those of the store in Go.
func TestConformanceBySQL(t *testing.T) {
	t.Parallel() // it mostly waits
	conformBySQL(t, func(_ testing.TB, server *servertest.PostgresServer) string { return server.URL() })
}

func conformBySQL(t *testing.T, url func(testing.TB, *servertest.PostgresServer) string) {
	storetest.Run(t, &storetest.Harness{
		Parallel: 6, // each pooler has up to 20 connections
		New: func(trial testing.TB, turn time.Duration) *storetest.Subject {
			server, o := serverFor(trial), ownNames()
			at := url(trial, server)
			o.pushedTTL = turn
			trial.Cleanup(func() { checkListed(trial, server, o) })
			return &storetest.Subject{
				Open:    func() store.Store { return openBySQL(trial, at, o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { dropSchema(server, o) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew:     "it reads no clock of its process",
			storetest.Notifier: "statements of SQL do not listen; they are asked again",
		},
	})
}

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	remote.CatchUpLimit = testkit.Limit
	testkit.Main(m, testkit.Children{"sqltest": beChild}, scope.Close)
}

// shared is the server of all tests that leave its settings alone. They have a schema of
// their own, or a database.
var shared = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 400})
})

// ownDatabase returns the URL of a database of the server for one test.
func ownDatabase(server *servertest.PostgresServer) string {
	name := testkit.Own()
	server.Query("CREATE DATABASE " + name)
	return strings.Replace(server.URL(), "/postgres?", "/"+name+"?", 1)
}

// ownNames returns the options of a store that has a schema of its own, and names of its
// own in it: what functions in hundreds of schemas are called is slow to look up.
func ownNames() *Options {
	name := testkit.Own()
	return &Options{Schema: name, Prefix: "in_" + name}
}

// namesOf returns the options of another store with the tables of this one.
func namesOf(s *Store) *Options { return &Options{Schema: s.names.schema, Prefix: s.names.prefix} }

// open opens a store as a process of its own would, with its tables. It tries until the server
// accepts it, because a pooler refuses every client for a second after its server, for example
// one that starts, has refused it once. The store ends with the test.
func open(t testing.TB, url string, o *Options) *Store {
	t.Helper()
	config, d, err := parse(url, o)
	testkit.Must(t, err)
	// Not by Options.Migrate, and more than once: on a busy machine all that may take
	// longer than Open does.
	var s *Store
	testkit.Eventually(t, "the store is open", func() bool {
		if err = migrateOnce(t.Context(), config, d); err == nil {
			s, err = Open(t.Context(), url, o)
		}
		refused := new(pgconn.ConnectError)
		if err != nil && !errors.As(err, &refused) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { testkit.Check(t, s.Close()) })
	return s
}

// migrateOnce makes the tables on a connection of its own.
func migrateOnce(ctx context.Context, config *pgxpool.Config, o *Options) error {
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	return errors.Join(Migrate(ctx, conn, o), conn.Close(ctx))
}

// untilListening waits until the store listens, because no grant is pushed before. A store that
// polls does not listen.
func untilListening(t testing.TB, s *Store) {
	t.Helper()
	if !s.listens() {
		return
	}
	holder := sqltest.Hold(t, s, "listening")
	testkit.Eventually(t, "the store listens", func() bool {
		waiter := store.Settlement{Key: store.Key{Name: "listening"}, Token: store.NewToken(), Outcome: store.Undo}
		sqltest.Ask(t, s, store.Claim{Key: waiter.Key, Token: waiter.Token, Mode: store.Queue})
		_ = sqltest.Settle(t, s, waiter)
		return s.subscriber.process.Load() != 0
	})
	testkit.Check(t, sqltest.Settle(t, s, store.Settlement{Key: store.Key{Name: "listening"}, Token: holder}))
	if _, err := s.Prune(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// leastRights is what the README says a user needs.
const leastRights = `GRANT USAGE ON SCHEMA own TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON @key, @holder, @waiter, @progress TO app;
GRANT SELECT, UPDATE ON @meta TO app;
GRANT USAGE ON SEQUENCE @number TO app;`

// transactionRights is what the README says that the user of transactions needs.
const transactionRights = `GRANT USAGE ON SCHEMA own TO app;
GRANT EXECUTE ON FUNCTION @settle_in, @reserve_in TO app;`

// leaseRights is what the README says that the user of leases by SQL needs.
const leaseRights = `GRANT USAGE ON SCHEMA own TO app;
GRANT EXECUTE ON FUNCTION @new_token, @claim, @renew, @release, @hold_in TO app;`
