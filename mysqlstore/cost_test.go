package mysqlstore

import (
	"context"
	"database/sql"
	"math"
	"net"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// counted is a connection that counts what is sent.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}

// counting returns a configuration whose connections count what they send.
func counting(t *testing.T, dsn string) (*mysql.Config, *atomic.Int64) {
	t.Helper()
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	n := &atomic.Int64{}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &counted{Conn: conn, n: n}, err
	}
	return config, n
}

// TestTransactionCost counts round trips: exactly once costs one for the claim, by the
// store's own connections, and on the application's one to mark the transaction and one
// to settle. Where MySQL's connections send statements one by one, settling takes three.
// A replay is the claim alone.
func TestTransactionCost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server func() *servertest.MariaDBServer
		params string
		more   int64
	}{
		"MariaDB":        {mariadb, "", 2},
		"MySQL, several": {mysqld, "?multiStatements=true", 2},
		"MySQL":          {mysqld, "", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, test.server(), "")
			own, ours := counting(t, b.server.DSN())
			s, err := New(t.Context(), own, &Options{Prefix: b.s.options.Prefix, PruneEvery: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			b.client = newClient(t, s, nil)
			config, theirs := counting(t, b.server.DSN()+test.params)
			connector, err := mysql.NewConnector(config)
			if err != nil {
				t.Fatal(err)
			}
			db := sql.OpenDB(connector)
			defer db.Close()
			db.SetMaxOpenConns(1)

			const runs = 10
			// measure returns how many round trips a run takes, by the application's
			// connections and the store's. More of these are of the first ones, and of
			// renewals on a busy machine.
			measure := func(run func(i int) error) (their, our int64) {
				t.Helper()
				their, our = math.MaxInt64, math.MaxInt64
				for i := range 5 + runs {
					a, b := theirs.Load(), ours.Load()
					if err := run(i); err != nil {
						t.Fatal(err)
					}
					their, our = min(their, theirs.Load()-a), min(our, ours.Load()-b)
				}
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
			if their != bare+test.more || our != 1 {
				t.Errorf("%d round trips and %d for the claim; want %d more than the bare transaction's %d, and 1", their, our, test.more, bare)
			}
			if their, our = measure(func(int) error { _, err := b.book(t.Context(), tr, "0"); return err }); their != 0 || our != 1 {
				t.Errorf("a replay has %d round trips, and %d for the claim; want 0 and 1", their, our)
			}
		})
	}
}

// BenchmarkTransaction measures runs beside the bare transaction, each goroutine with
// keys of its own.
func BenchmarkTransaction(b *testing.B) {
	for name, test := range map[string]struct {
		server servertest.MariaDBOptions
		params string
	}{
		"MariaDB":       {servertest.MariaDBOptions{}, ""},
		"MySQL":         {servertest.MariaDBOptions{MySQL: true}, ""},
		"MySQL-several": {servertest.MariaDBOptions{MySQL: true}, "?multiStatements=true"},
	} {
		b.Run(name, func(b *testing.B) {
			bank := newBank(b, servertest.MariaDB(b, &test.server), test.params)
			bank.db.SetMaxIdleConns(100)
			tr := bank.s.Transactions(bank.db, nil)
			var n atomic.Int64
			for _, how := range []struct {
				name string
				run  func(ctx context.Context) error
			}{
				{"bare", func(ctx context.Context) error {
					tx, err := bank.db.BeginTx(ctx, nil)
					if err != nil {
						return err
					}
					if _, err := tx.ExecContext(ctx, bank.entry("bare")); err != nil {
						return err
					}
					return tx.Commit()
				}},
				{"once", func(ctx context.Context) error {
					_, err := bank.book(ctx, tr, "key "+strconv.FormatInt(n.Add(1), 10))
					return err
				}},
			} {
				for _, parallel := range []int{1, 32} {
					b.Run(how.name+"-"+strconv.Itoa(parallel), func(b *testing.B) {
						b.SetParallelism(max(1, parallel/2))
						if parallel == 1 {
							for b.Loop() {
								if err := how.run(b.Context()); err != nil {
									b.Fatal(err)
								}
							}
							return
						}
						b.RunParallel(func(pb *testing.PB) {
							for pb.Next() {
								if err := how.run(b.Context()); err != nil {
									b.Error(err)
								}
							}
						})
					})
				}
			}
		})
	}
}

var _ dibs.Transactor = (*transactor)(nil)
