package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/servertest"
)

// callers is how many goroutines want locks at once.
const callers = 64

// BenchmarkAdvisory measures taking and giving up advisory locks, each of another key,
// by 64 goroutines: on one session, on a session each, and what people write by hand
// with a pool.
func BenchmarkAdvisory(b *testing.B) {
	server := servertest.Postgres(b, &servertest.PostgresOptions{MaxConnections: 4 * callers})
	db, err := sql.Open("pgx", server.URL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(callers)
	db.SetMaxIdleConns(callers)
	advisory, err := NewAdvisory(b.Context(), db, nil)
	if err != nil {
		b.Fatal(err)
	}
	session, err := OpenSession(b.Context(), server.URL(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { session.Close() })
	pool, err := pgxpool.New(b.Context(), server.URL()+"&pool_max_conns="+strconv.Itoa(callers))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	for _, way := range []struct {
		name string
		lock func(context.Context, AdvisoryKey) error
	}{
		{"session", func(ctx context.Context, key AdvisoryKey) error {
			l, err := session.Lock(ctx, key, nil)
			if err != nil {
				return err
			}
			return l.Unlock()
		}},
		{"pooled", func(ctx context.Context, key AdvisoryKey) error {
			l, err := advisory.Lock(ctx, key, nil)
			if err != nil {
				return err
			}
			return l.Unlock()
		}},
		{"by hand, database/sql", func(ctx context.Context, key AdvisoryKey) error { return byHand(ctx, db, key) }},
		{"by hand, pgxpool", func(ctx context.Context, key AdvisoryKey) error { return byHandPgx(ctx, pool, key) }},
	} {
		for _, n := range []int{1, callers} {
			b.Run(fmt.Sprintf("%s/%d", way.name, n), func(b *testing.B) {
				concurrently(b, n, func(ctx context.Context, i int64) error { return way.lock(ctx, IntKey(i)) })
			})
		}
	}
}

// concurrently has n goroutines do something b.N times in all.
func concurrently(b *testing.B, n int, f func(ctx context.Context, i int64) error) {
	b.Helper()
	var next atomic.Int64
	round := func() { // all have a connection then
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				if err := f(b.Context(), -int64(i)-1); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
	}
	round()
	b.ResetTimer()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := f(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "locks/s")
}

// byHand is what people write with database/sql.
func byHand(ctx context.Context, db *sql.DB, key AdvisoryKey) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", key.bits); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", key.bits)
	return err
}

// byHandPgx is what people write with pgx.
func byHandPgx(ctx context.Context, pool *pgxpool.Pool, key AdvisoryKey) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", key.bits); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", key.bits)
	return err
}
