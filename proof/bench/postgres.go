package main

import (
	"context"
	"database/sql"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/stores/pgstore"
)

// The names of what is measured on PostgreSQL.
const (
	pglockName   = "pglock"
	noBeatName   = "pglock on pgx, without heartbeats"
	advisoryName = "advisory lock"
)

// pglocks are pglock as its documentation sets it up, and as it is fastest: without
// the heartbeat that each lock sends when it begins, and on the faster driver.
var pglocks = []string{pglockName, noBeatName}

// openPostgres starts a server with its own settings, which waits for its disk, and
// its candidates.
func openPostgres(ctx context.Context) (b *candidates, err error) {
	b = newCandidates()
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	server := servertest.Postgres(b.scope, &servertest.PostgresOptions{MaxConnections: 6*callersConns + 50})
	for range 2 { // processes
		store, err := pgstore.Open(ctx, server.URL(), &pgstore.Options{Migrate: true})
		if err != nil {
			return b, err
		}
		if err := b.enter(store, store.Close); err != nil {
			return b, err
		}
	}
	err = b.enterSingly(func() (dibs.Store, func() error, error) {
		store, err := pgstore.Open(ctx, server.URL(), &pgstore.Options{PruneEvery: -1})
		if err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	})
	if err != nil {
		return b, err
	}
	pool, err := pgxPool(ctx, server.URL())
	if err != nil {
		return b, err
	}
	b.close = append(b.close, pool.Close)
	b.lockers[advisoryName] = []locker{advisoryLocker{pool}}
	return b, b.enterPglock(server.URL())
}

// enterPglock adds pglock twice.
func (b *candidates) enterPglock(url string) error {
	connector, err := pq.NewConnector(url)
	if err != nil {
		return err
	}
	plain := sqlPool(sql.OpenDB(connector))
	b.close = append(b.close, func() { _ = plain.Close() })
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	fast := sqlPool(stdlib.OpenDB(*config))
	b.close = append(b.close, func() { _ = fast.Close() })
	lease := pglock.WithLeaseDuration(lockTTL)
	documented, err := pglock.New(plain, lease, pglock.WithHeartbeatFrequency(lockTTL/3))
	if err != nil {
		return err
	}
	quickest, err := pglock.UnsafeNew(fast, lease, pglock.WithHeartbeatFrequency(0))
	if err != nil {
		return err
	}
	b.lockers[pglockName] = []locker{pglockLocker{documented}}
	b.lockers[noBeatName] = []locker{pglockLocker{quickest}}
	return documented.TryCreateTable()
}

// pgxPool opens a pool with a connection for each caller.
func pgxPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = callersConns
	return pgxpool.NewWithConfig(ctx, config)
}

// sqlPool gives a pool a connection for each caller, which it keeps.
func sqlPool(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(callersConns)
	db.SetMaxIdleConns(callersConns)
	return db
}

// advisoryLocker is the server's own lock, on a session for each caller. It writes
// nothing and is gone with the session.
type advisoryLocker struct{ pool *pgxpool.Pool }

func (l advisoryLocker) lock(ctx context.Context, key string, section func()) error {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", key); err != nil {
		return err
	}
	section()
	// Even when the time is over meanwhile: others wait for it.
	_, err = conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", key)
	return err
}

type pglockLocker struct{ client *pglock.Client }

func (l pglockLocker) lock(ctx context.Context, key string, section func()) error {
	held, err := l.client.AcquireContext(ctx, key)
	if err != nil {
		return err
	}
	section()
	return held.Close()
}
