package pgstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// benchServer is a server with its own settings, which waits for its disk.
var benchServer = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, nil)
})

func benchStore(b *testing.B) *Store {
	b.Helper()
	return open(b, benchServer().URL(), ownNames())
}

func openBench(b *testing.B) sqltest.Store { return benchStore(b) }

func BenchmarkAcquireRelease(b *testing.B) { sqltest.AcquireRelease(b, openBench) }

func BenchmarkReplay(b *testing.B) { sqltest.Once(b, openBench, true) }

func BenchmarkOneByOne(b *testing.B) {
	sqltest.OneByOne(b, func(b *testing.B, connections int) sqltest.Store {
		s := benchStore(b)
		config, err := pgxpool.ParseConfig(benchServer().URL())
		testkit.Must(b, err)
		config.MaxConns = int32(connections)
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		testkit.Must(b, err)
		b.Cleanup(pool.Close)
		front, back := s.front, s.back
		s.front, s.back = pool, pool
		b.Cleanup(func() { s.front, s.back = front, back })
		return s
	})
}

func BenchmarkHandOver(b *testing.B) {
	s := benchStore(b)
	sqltest.HandOver(b, time.Millisecond, [2]sqltest.Store{s, open(b, benchServer().URL(), namesOf(s))})
}

// What a job needs of a key that no other job wants: its place, the key from it, and
// the end.
func BenchmarkPlaces(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			client := sqltest.Client(b, benchStore(b), nil)
			sqltest.Cycles(b, goroutines, func(g, i int64) error {
				ctx := context.Background()
				place, _, err := client.Reserve(ctx, fmt.Sprintf("goroutine %d, cycle %d", g, i), time.Hour, &dibs.PlaceOptions{Grace: time.Minute})
				if err != nil {
					return err
				}
				lease, err := client.TryRedeem(ctx, place, &dibs.RedeemOptions{Grace: time.Minute})
				if err != nil {
					return err
				}
				return lease.Release()
			})
		})
	}
}

// The raw floor: a lease as two statements that are written by hand.
func BenchmarkTwoStatements(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			config, err := pgxpool.ParseConfig(benchServer().URL())
			testkit.Must(b, err)
			config.MaxConns = int32(goroutines)
			ctx := context.Background()
			pool, err := pgxpool.NewWithConfig(ctx, config)
			testkit.Must(b, err)
			b.Cleanup(pool.Close)
			if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS floor (k text PRIMARY KEY, token bytea, ends timestamptz)"); err != nil {
				b.Fatal(err)
			}
			sqltest.Cycles(b, goroutines, func(g, i int64) error {
				k, t := fmt.Sprintf("goroutine %d, cycle %d", g, i), store.NewToken()
				_, err := pool.Exec(ctx, `INSERT INTO floor VALUES ($1, $2, now() + '1 minute') ON CONFLICT (k)
					DO UPDATE SET token = excluded.token, ends = excluded.ends WHERE floor.ends < now()`, k, t[:])
				if err == nil {
					_, err = pool.Exec(ctx, "DELETE FROM floor WHERE k = $1 AND token = $2", k, t[:])
				}
				return err
			})
		})
	}
}

// The raw floor of a hand-over: one connection writes a row and notifies another connection.
func BenchmarkNotify(b *testing.B) {
	ctx := context.Background()
	var conns [2]*pgx.Conn
	for i := range conns {
		var err error
		if conns[i], err = pgx.Connect(ctx, benchServer().URL()); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conns[i].Close(ctx) })
	}
	if _, err := conns[0].Exec(ctx, "CREATE TABLE IF NOT EXISTS notified (n int); DELETE FROM notified; INSERT INTO notified VALUES (1)"); err != nil {
		b.Fatal(err)
	}
	if _, err := conns[1].Exec(ctx, "LISTEN notified"); err != nil {
		b.Fatal(err)
	}
	took := make([]time.Duration, 0, b.N)
	for range b.N {
		time.Sleep(time.Millisecond) // as in BenchmarkHandOver
		start, sent := time.Now(), make(chan bool)
		go func() {
			defer close(sent)
			if _, err := conns[0].Exec(ctx, "WITH u AS (UPDATE notified SET n = n + 1 RETURNING n) SELECT pg_notify('notified', n::text) FROM u", pgx.QueryExecModeCacheStatement); err != nil {
				b.Error(err)
			}
		}()
		if _, err := conns[1].WaitForNotification(ctx); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		<-sent
	}
	sqltest.Quantiles(b, took)
}

// An insert in a transaction, and the same exactly once.
func BenchmarkOnceTx(b *testing.B) {
	for _, goroutines := range []int{1, 32} {
		bank := newBank(b, benchServer().URL()+"&pool_max_conns="+fmt.Sprint(goroutines), nil)
		b.Run(fmt.Sprintf("bare/%d", goroutines), func(b *testing.B) {
			sqltest.Cycles(b, goroutines, func(g, i int64) error {
				return pgx.BeginFunc(context.Background(), bank.pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(context.Background(), bank.entry("k"))
					return err
				})
			})
		})
		tr := bank.s.Transactions(bank.pool, nil)
		b.Run(fmt.Sprintf("once/%d", goroutines), func(b *testing.B) {
			sqltest.Cycles(b, goroutines, func(g, i int64) error {
				_, err := OnceTx(context.Background(), bank.client, tr, fmt.Sprintf("%d of %d", i, b.N), nil, func(ctx context.Context, tx pgx.Tx) (int64, error) {
					_, err := tx.Exec(ctx, bank.entry("k"))
					return i, err
				})
				return err
			})
		})
	}
}

// A transaction that inserts a row, and the same with a reserved place: of a key of its own, or of
// one key for all.
func BenchmarkReserveIn(b *testing.B) {
	for _, keys := range []string{"without", "own", "one"} {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", keys, goroutines), func(b *testing.B) {
				s := benchStore(b)
				client := sqltest.Client(b, s, nil)
				config, err := pgxpool.ParseConfig(benchServer().URL())
				testkit.Must(b, err)
				config.MaxConns = 64
				pool, err := pgxpool.NewWithConfig(b.Context(), config)
				testkit.Must(b, err)
				defer pool.Close()
				jobs := s.names.sql("@jobs")
				if _, err := pool.Exec(b.Context(), "CREATE TABLE "+jobs+" (id bigserial PRIMARY KEY, args text NOT NULL)"); err != nil {
					b.Fatal(err)
				}
				enqueue := func(key string) error {
					return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
						if _, err := tx.Exec(b.Context(), "INSERT INTO "+jobs+" (args) VALUES ($1)", key); err != nil || keys == "without" {
							return err
						}
						_, err := client.ReserveIn(b.Context(), s.Reserver(tx), key, time.Hour, nil)
						return err
					})
				}
				var warm sync.WaitGroup // what is made once for each connection
				for range 4 * goroutines {
					warm.Go(func() {
						testkit.Check(b, enqueue("warm"))
					})
				}
				warm.Wait()
				sqltest.Cycles(b, goroutines, func(_, i int64) error {
					if keys == "one" {
						return enqueue("one")
					}
					return enqueue(fmt.Sprintf("key %d", i))
				})
			})
		}
	}
}
