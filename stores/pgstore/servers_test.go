package pgstore

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

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

// restarts reports whether the property that is tried restarts its backend.
func restarts(t testing.TB) bool {
	return slices.ContainsFunc(storetest.Properties(), func(p storetest.Property) bool {
		return p.Name == path.Base(t.Name()) && slices.Contains(p.Needs, storetest.Restart)
	})
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
