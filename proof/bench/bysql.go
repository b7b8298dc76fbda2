package main

import (
	"context"
	"encoding/hex"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/pgstore"
)

// tableName is a table of leases as people write it by hand.
const tableName = "INSERT … ON CONFLICT"

// openBySQL starts a server as openPostgres does. Ours is two statements of SQL, on a connection for each caller.
func openBySQL(ctx context.Context) (b *candidates, err error) {
	b = newCandidates()
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	server := servertest.Postgres(b.scope, &servertest.PostgresOptions{MaxConnections: callersConns + 50})
	pool, err := pgxPool(ctx, server.URL())
	if err != nil {
		return b, err
	}
	b.close = append(b.close, pool.Close)
	if err := pgstore.Migrate(ctx, pool, nil); err != nil {
		return b, err
	}
	b.lockers[ours] = []locker{statements{
		pool, "SELECT state = 'granted' FROM dibs_claim($1, $2, '10 s')", "SELECT dibs_release($1, $2)",
	}}
	b.lockers[advisoryName] = []locker{statements{
		pool, "SELECT pg_try_advisory_lock(hashtextextended($1 || left($2, 0), 0))", "SELECT pg_advisory_unlock(hashtextextended($1 || left($2, 0), 0))",
	}}
	b.lockers[tableName] = []locker{statements{
		pool, `INSERT INTO lease (name, owner, ends) VALUES ($1, $2, now() + interval '10 s')
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, ends = excluded.ends WHERE lease.ends < now() RETURNING true`,
		"DELETE FROM lease WHERE name = $1 AND owner = $2",
	}}
	_, err = pool.Exec(ctx, "CREATE TABLE lease (name text PRIMARY KEY, owner text NOT NULL, ends timestamptz NOT NULL)")
	return b, err
}

// statements are a lock of two statements, on one connection.
type statements struct {
	pool          *pgxpool.Pool
	lockSQL, free string
}

func (l statements) lock(ctx context.Context, key string, section func()) error {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	t := store.NewToken()
	token := hex.EncodeToString(t[:])
	var granted bool
	if err := conn.QueryRow(ctx, l.lockSQL, key, token).Scan(&granted); err != nil {
		return err
	}
	if !granted {
		return errHeld
	}
	section()
	_, err = conn.Exec(context.WithoutCancel(ctx), l.free, key, token)
	return err
}
