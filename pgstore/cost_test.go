package pgstore

import (
	"context"
	"database/sql"
	"math"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestTransactionCost: a place that is reserved in a transaction costs a statement, and
// a round trip. Exactly once costs two statements, the claim and the
// settlement; and for pgx no round trip more on the application's connection: the
// settlement goes with COMMIT. With database/sql the mark is a third.
func TestTransactionCost(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true, Settings: []string{
		"shared_preload_libraries = 'pg_stat_statements'",
	}})
	server.Query("CREATE EXTENSION pg_stat_statements")
	b := newBank(t, server.URL(), &Options{PruneEvery: -1})
	var trips atomic.Int64
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &counted{Conn: conn, n: &trips}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()

	const runs = 10
	entry := b.entry("k")
	// measure returns how many statements a run takes, and how many round trips; more of
	// these are those of a driver that asks whether a connection still lives. (What a
	// trigger does at COMMIT is counted as if it had been asked for.)
	measure := func(run func(i int) error) (statements float64, roundTrips int64) {
		t.Helper()
		for i := range 5 { // until what is prepared once is prepared
			if err := run(-1 - i); err != nil {
				t.Fatal(err)
			}
		}
		server.Query("SELECT pg_stat_statements_reset()")
		roundTrips = math.MaxInt64
		for i := range runs {
			before := trips.Load()
			if err := run(i); err != nil {
				t.Fatal(err)
			}
			roundTrips = min(roundTrips, trips.Load()-before)
		}
		n, err := strconv.Atoi(server.Query("SELECT sum(calls) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '-- ping%' AND query !~ 'commit_places|_pending'")[0][0])
		if err != nil {
			t.Fatal(err)
		}
		return float64(n) / runs, roundTrips
	}
	bare, bareTrips := measure(func(int) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), entry)
			return err
		})
	})
	statements, roundTrips := measure(func(i int) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), entry); err != nil {
				return err
			}
			_, err := b.client.ReserveIn(t.Context(), b.s.Reserver(tx), "place"+strconv.Itoa(i), time.Hour, nil)
			return err
		})
	})
	if statements != bare+1 || roundTrips != bareTrips+1 {
		t.Errorf("with a place: %v statements and %v round trips; the bare transaction has %v and %v", statements, roundTrips, bare, bareTrips)
	}
	for name, test := range map[string]struct {
		tr         dibs.Transactor
		statements float64 // more than the bare transaction's
		roundTrips int64   // of the application's connection, more than the bare transaction's
	}{
		"pgx":            {b.s.Transactions(pool, nil), 2, 0},
		"pgx, repeating": {b.s.Transactions(pool, &pgx.TxOptions{IsoLevel: pgx.RepeatableRead}), 2, 0},
		"sql":            {b.s.SQLTransactions(db, &sql.TxOptions{}), 3, 2},
	} {
		statements, roundTrips := measure(func(i int) error {
			_, err := b.book(t.Context(), test.tr, name+strconv.Itoa(i))
			return err
		})
		t.Logf("%s: %v statements, %v round trips; bare %v, %v", name, statements, roundTrips, bare, bareTrips)
		if statements != bare+test.statements || roundTrips != bareTrips+test.roundTrips {
			t.Errorf("%s: %v statements and %v round trips; the bare transaction has %v and %v", name, statements, roundTrips, bare, bareTrips)
		}
		// A replay is the claim.
		statements, roundTrips = measure(func(int) error {
			_, err := b.book(t.Context(), test.tr, name+"0")
			return err
		})
		if statements != 1 || roundTrips != 0 {
			t.Errorf("%s: a replay has %v statements and %v round trips of the application", name, statements, roundTrips)
		}
	}
}

// counted is a connection that counts what is sent.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}
