package mysqlstore

import (
	"context"
	"database/sql"
	"net"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// counting returns a configuration whose connections count what they send.
func counting(t *testing.T, dsn string) (*mysql.Config, *atomic.Int64) {
	t.Helper()
	config, err := mysql.ParseDSN(dsn)
	testkit.Must(t, err)
	n := &atomic.Int64{}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &sqltest.Counted{Conn: conn, N: n}, err
	}
	return config, n
}

// statementsOf counts what the only connection of a pool has asked the server for, but
// for this question.
func statementsOf(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	var name string
	testkit.Must(t, db.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n))
	return n
}

// TestCost: what the verbs take. Statements of one call go in one message. A hand-over
// is the settlement: the waiter finds its grant when it looks, which it does by a
// connection of its own.
func TestCost(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		o := &Options{Prefix: testkit.Own(), PruneEvery: -1}
		open(t, server.URL(), o)
		config, trips := counting(t, server.DSN())
		s, err := New(t.Context(), config, o)
		testkit.Must(t, err)
		defer s.Close()
		// A look is made by a connection that does not count.
		polls := s.polls
		s.polls = openDB(t, server.URL())
		defer func() { s.polls.Close(); s.polls = polls }()
		asked := 0
		sqltest.Costs(t, suite(server), s, func() (c sqltest.Cost) {
			for _, db := range []*sql.DB{s.front, s.back} {
				db.SetMaxOpenConns(1)
				c.Statements += statementsOf(t, db) - asked
			}
			asked++
			c.RoundTrips = int(trips.Load()) - 2*asked
			return c
		}, map[string]sqltest.Cost{
			"claim": {Statements: 5, RoundTrips: 1}, "claim of 64": {Statements: 5, RoundTrips: 1},
			"renewal": {Statements: 7, RoundTrips: 1}, "renewal of 64": {Statements: 7, RoundTrips: 1},
			"settlement": {Statements: 7, RoundTrips: 1}, "settlement of 64": {Statements: 7, RoundTrips: 1},
			"wait":   {Statements: 18, RoundTrips: 3}, // claim, and again with all there is to know: read, and written
			"replay": {Statements: 5, RoundTrips: 1}, "hand-over": {Statements: 19, RoundTrips: 3},
		})
	})
}

// TestTransactionCost counts round trips: exactly once costs one for the claim, by the
// store's own connections, and on the application's one to mark the transaction and three
// to settle. A replay is the claim alone.
func TestTransactionCost(t *testing.T) {
	t.Parallel()
	const more = 4
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, server(), "")
			own, ours := counting(t, b.server.DSN())
			s, err := New(t.Context(), own, &Options{Prefix: b.s.options.Prefix, PruneEvery: -1})
			testkit.Must(t, err)
			defer s.Close()
			b.client = sqltest.Client(t, s, nil)
			config, theirs := counting(t, b.server.DSN()+kinds[name].params)
			connector, err := mysql.NewConnector(config)
			testkit.Must(t, err)
			db := sql.OpenDB(connector)
			defer db.Close()
			db.SetMaxOpenConns(1)
			// measure returns how many round trips a run takes, by the application's
			// connections and the store's.
			measure := func(run func(i int) error) (their, our int) {
				t.Helper()
				their = sqltest.Measure(t, func() sqltest.Cost { return sqltest.Cost{RoundTrips: int(theirs.Load())} }, run).RoundTrips
				our = sqltest.Measure(t, func() sqltest.Cost { return sqltest.Cost{RoundTrips: int(ours.Load())} }, func(i int) error { return run(100 + i) }).RoundTrips
				return their, our
			}
			bare, _ := measure(func(int) error {
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					return err
				}
				if _, err := tx.ExecContext(t.Context(), b.entry("k")); err != nil {
					return err
				}
				return tx.Commit()
			})
			tr := s.Transactions(db, nil)
			their, our := measure(func(i int) error {
				_, err := b.book(t.Context(), tr, strconv.Itoa(i))
				return err
			})
			t.Logf("the bare transaction has %d round trips; exactly once %d, and %d for the claim", bare, their, our)
			if their != bare+more || our != 1 {
				t.Errorf("%d round trips and %d for the claim; want %d more than the bare transaction's %d, and 1", their, our, more, bare)
			}
			if their, our = measure(func(int) error { _, err := b.book(t.Context(), tr, "0"); return err }); their != 0 || our != 1 {
				t.Errorf("a replay has %d round trips, and %d for the claim; want 0 and 1", their, our)
			}
		})
	}
}

var _ store.Transactor = (*transactor)(nil)
