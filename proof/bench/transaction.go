package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/pgstore"
)

// transactionBench is a PostgreSQL server with an application's table, and a
// transaction of the application as it is and exactly once.
type transactionBench struct {
	*contestants
	server     *servertest.PostgresServer
	pool       *pgxpool.Pool // the application's, with a connection for each caller
	client     *dibs.Client
	transactor dibs.Transactor
	sent       atomic.Int64 // messages to the server, of the application and of dibs
	keys       atomic.Int64
}

func newTransactionBench(ctx context.Context) (b *transactionBench, err error) {
	b = &transactionBench{contestants: newContestants()}
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	b.server = servertest.Postgres(b.scope, &servertest.PostgresOptions{
		MaxConnections: callersConns + 50,
		Settings:       []string{"shared_preload_libraries = 'pg_stat_statements'"},
	})
	for _, sql := range []string{"CREATE EXTENSION pg_stat_statements", "CREATE TABLE ledger (id bigserial PRIMARY KEY, account text NOT NULL, amount bigint NOT NULL)"} {
		if _, err := b.server.Do(sql); err != nil {
			return b, err
		}
	}
	config, err := pgxpool.ParseConfig(b.server.URL())
	if err != nil {
		return b, err
	}
	config.MaxConns = callersConns
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return countedConn{conn, &b.sent}, err
	}
	if b.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return b, err
	}
	b.close = append(b.close, b.pool.Close)
	// Nothing is pruned meanwhile, so that only what belongs to a run is counted.
	store, err := pgstore.New(ctx, b.pool, &pgstore.Options{Migrate: true, PruneEvery: -1})
	if err != nil {
		return b, err
	}
	b.close = append(b.close, func() { _ = store.Close() })
	if b.client, err = dibs.New(store, nil); err != nil {
		return b, err
	}
	b.close = append(b.close, func() { _ = b.client.Close() })
	b.transactor = store.Transactions(b.pool, nil)
	return b, nil
}

// countedConn counts what is sent: a message to the server each, which waits for its
// answer before the next.
type countedConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	c.sent.Add(1)
	return c.Conn.Write(p)
}

// bare is the application's transaction: it begins, inserts a row and commits.
func (b *transactionBench) bare(ctx context.Context) error {
	tx, err := b.pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := enterLedger(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// once is the same exactly once, under a key that nobody has used before.
func (b *transactionBench) once(ctx context.Context) error {
	key := "charge " + strconv.FormatInt(b.keys.Add(1), 10)
	_, err := pgstore.OnceTx(ctx, b.client, b.transactor, key, nil, func(ctx context.Context, tx pgx.Tx) (string, error) {
		return body, enterLedger(ctx, tx)
	})
	return err
}

func enterLedger(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO ledger (account, amount) VALUES ($1, $2)", "cus_8841", 4200)
	return err
}

// transactionStatements counts, at the server, the statements that exactly once adds
// to a transaction.
func transactionStatements(goroutines int) func(context.Context, config) (figure, error) {
	return func(ctx context.Context, c config) (figure, error) {
		b, err := newTransactionBench(ctx)
		if err != nil {
			return figure{}, err
		}
		defer b.end()
		f := figure{unit: "statements"}
		var plain, messages []float64
		for round := range min(c.rounds, 5) + 1 {
			bare, sentBare, err := b.counted(ctx, goroutines, b.bare)
			if err != nil {
				return f, err
			}
			once, sentOnce, err := b.counted(ctx, goroutines, b.once)
			if err != nil {
				return f, err
			}
			if round > 0 { // the first one prepares what is prepared
				f.value = append(f.value, once-bare)
				plain, messages = append(plain, bare), append(messages, sentOnce-sentBare)
			}
		}
		f.detail = fmt.Sprintf("the bare transaction has %s; %s round trips more, by messages that were sent", count(median(plain)), count(median(messages)))
		return f, nil
	}
}

// counted runs transactions and returns how many statements the server ran for each,
// and how many messages it was sent.
func (b *transactionBench) counted(ctx context.Context, goroutines int, run func(context.Context) error) (statements, messages float64, err error) {
	const each = 320
	if _, err := b.server.Do("SELECT pg_stat_statements_reset()"); err != nil {
		return 0, 0, err
	}
	before := b.sent.Load()
	var all sync.WaitGroup
	errs := make(chan error, goroutines)
	for range goroutines {
		all.Go(func() {
			for range each / goroutines {
				if err := run(ctx); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return 0, 0, err
	}
	sent := b.sent.Load() - before
	rows, err := b.server.Do("SELECT sum(calls) FROM pg_stat_statements WHERE toplevel AND query !~ 'pg_stat_statements'")
	if err != nil {
		return 0, 0, err
	}
	n, err := strconv.Atoi(rows[0][0])
	return float64(n) / each, float64(sent) / each, err
}

// transactionRate compares transactions that are made exactly once with the same as
// they are.
func transactionRate(goroutines int) func(context.Context, config) (figure, error) {
	return func(ctx context.Context, c config) (figure, error) {
		b, err := newTransactionBench(ctx)
		if err != nil {
			return figure{}, err
		}
		defer b.end()
		side := func(run func(context.Context) error) func(context.Context, time.Duration) (float64, error) {
			return func(ctx context.Context, d time.Duration) (float64, error) {
				return rate(ctx, goroutines, d, func(ctx context.Context, _, _ int) error { return run(ctx) })
			}
		}
		return interleave(ctx, c, "transactions/s", side(b.once), side(b.bare))
	}
}
