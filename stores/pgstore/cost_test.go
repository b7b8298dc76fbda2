package pgstore

import (
	"context"
	"database/sql"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// counter is a server that counts statements, in each database. Not the shared one: it
// would count the many of all other tests, and forget some of them.
var counter = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, Settings: []string{
		"shared_preload_libraries = 'pg_stat_statements'",
	}})
})

// counting returns a pool of a database, whose connections count the messages that they
// send, and what counts these and the statements of the whole database.
func counting(t *testing.T, url string, connections int32) (pool *pgxpool.Pool, count func() sqltest.Cost) {
	t.Helper()
	db := openDB(t, url)
	if _, err := db.ExecContext(t.Context(), "CREATE EXTENSION pg_stat_statements"); err != nil {
		t.Fatal(err)
	}
	var trips atomic.Int64
	config, err := pgxpool.ParseConfig(url)
	testkit.Must(t, err)
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &sqltest.Counted{Conn: conn, N: &trips}, err
	}
	config.MaxConns = connections
	if pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, func() (c sqltest.Cost) {
		t.Helper()
		// Not what a driver asks to see whether a connection lives.
		if err := db.QueryRowContext(t.Context(), `SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
			WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '-- ping%'`).Scan(&c.Statements); err != nil {
			t.Fatal(err)
		}
		c.RoundTrips = int(trips.Load())
		return c
	}
}

// TestCost: what the verbs take. A hand-over is one settlement, because the grant is pushed.
func TestCost(t *testing.T) {
	t.Parallel()
	url := ownDatabase(counter())
	pool, count := counting(t, url, 4)
	s, err := New(t.Context(), pool, &Options{Migrate: true, PruneEvery: -1})
	testkit.Must(t, err)
	defer s.Close()
	one := sqltest.Cost{Statements: 1, RoundTrips: 1}
	sqltest.Costs(t, suite(), s, count, map[string]sqltest.Cost{
		"claim": one, "claim of 64": one, "renewal": one, "renewal of 64": one, "settlement": one, "settlement of 64": one,
		"wait": one, "hand-over": one, "replay": one,
	})
}

// TestTransactionCost: a place that is reserved in a transaction costs a statement, and
// a round trip. Exactly once costs two statements, the claim and the
// settlement; and for pgx no round trip more on the application's connection: the
// settlement goes with COMMIT. With database/sql the mark is a third.
func TestTransactionCost(t *testing.T) {
	t.Parallel()
	url := ownDatabase(counter())
	b := newBank(t, url, &Options{PruneEvery: -1})
	pool, count := counting(t, url, 1)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	entry := b.entry("k")
	measure := func(run func(i int) error) sqltest.Cost { return sqltest.Measure(t, count, run) }
	bare := measure(func(int) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), entry)
			return err
		})
	})
	place := measure(func(i int) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), entry); err != nil {
				return err
			}
			_, err := b.client.ReserveIn(t.Context(), b.s.Reserver(tx), "place"+strconv.Itoa(i), time.Hour, nil)
			return err
		})
	})
	if place.Statements != bare.Statements+1 || place.RoundTrips != bare.RoundTrips+1 {
		t.Errorf("with a place: %+v; the bare transaction has %+v", place, bare)
	}
	for name, test := range map[string]struct {
		tr   store.Transactor
		more sqltest.Cost // than the bare transaction's; the round trips are of the application's connection
	}{
		"pgx":            {b.s.Transactions(pool, nil), sqltest.Cost{Statements: 2}},
		"pgx, repeating": {b.s.Transactions(pool, &pgx.TxOptions{IsoLevel: pgx.RepeatableRead}), sqltest.Cost{Statements: 2}},
		"sql":            {b.s.SQLTransactions(db, &sql.TxOptions{}), sqltest.Cost{Statements: 3, RoundTrips: 2}},
	} {
		once := measure(func(i int) error {
			_, err := b.book(t.Context(), test.tr, name+strconv.Itoa(i))
			return err
		})
		t.Logf("%s takes %+v, the bare transaction %+v", name, once, bare)
		if once.Statements != bare.Statements+test.more.Statements || once.RoundTrips != bare.RoundTrips+test.more.RoundTrips {
			t.Errorf("%s takes %+v, want %+v more than the bare transaction's %+v", name, once, test.more, bare)
		}
		// A replay is the claim.
		replay := measure(func(int) error {
			_, err := b.book(t.Context(), test.tr, name+"0")
			return err
		})
		if (replay != sqltest.Cost{Statements: 1}) {
			t.Errorf("%s: a replay takes %+v", name, replay)
		}
	}
}
