package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net/url"
	"time"

	"cirello.io/pglock"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq" // pglock's documented driver

	"github.com/dibs-go/dibs/proof/torture"
)

// pgURL returns the URL of a store as a PostgreSQL client takes it.
func pgURL(store string) (string, error) {
	u, err := url.Parse(store)
	if err != nil {
		return "", err
	}
	q := u.Query()
	q.Del("migrate")
	u.RawQuery = q.Encode()
	return u.String(), nil
}

func pgPool(ctx context.Context, store string) (*pgxpool.Pool, error) {
	u, err := pgURL(store)
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(u)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // which a pooler can pass on
	return pgxpool.NewWithConfig(ctx, config)
}

// advisory is pg_advisory_lock on a connection for each lock.
type advisory struct{ pool *pgxpool.Pool }

func openAdvisory(ctx context.Context, url string, _ time.Duration) (torture.Locker, func() error, error) {
	pool, err := pgPool(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	return &advisory{pool}, func() error { pool.Close(); return nil }, nil
}

func (l *advisory) Lock(ctx context.Context, key string) (*torture.Held, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", key); err != nil {
		end(conn)
		return nil, err
	}
	return &torture.Held{Unlock: func() error {
		var had bool
		err := conn.QueryRow(context.Background(), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", key).Scan(&had)
		if err == nil && had {
			conn.Release()
			return nil
		}
		end(conn)
		return errors.Join(err, errors.New("the session did not have the lock"))
	}}, nil
}

// end ends a session that may have a lock.
func end(conn *pgxpool.Conn) { _ = conn.Hijack().Close(context.Background()) }

// row is a lock in a table: a row with the time at which it is over.
type row struct{ pool *pgxpool.Pool }

const rowTable = `CREATE TABLE IF NOT EXISTS trial_locks (name text PRIMARY KEY, owner text NOT NULL, until timestamptz NOT NULL)`

func openRow(ctx context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	pool, err := pgPool(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	if _, err := pool.Exec(ctx, rowTable); err != nil {
		pool.Close()
		return nil, nil, err
	}
	return &timed{ttl, (&row{pool}).try}, func() error { pool.Close(); return nil }, nil
}

func (l *row) try(ctx context.Context, key string, ttl time.Duration) (unlock func() error, err error) {
	owner := rand.Text()
	tag, err := l.pool.Exec(ctx, `INSERT INTO trial_locks AS l VALUES ($1, $2, now() + $3)
		ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until WHERE l.until < now()`, key, owner, ttl)
	if err != nil || tag.RowsAffected() == 0 {
		return nil, err
	}
	return func() error {
		_, err := l.pool.Exec(context.Background(), "DELETE FROM trial_locks WHERE name = $1 AND owner = $2", key, owner)
		return err
	}, nil
}

type pglockLocker struct{ client *pglock.Client }

func openPglock(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	u, err := pgURL(url)
	if err != nil {
		return nil, nil, err
	}
	db, err := sql.Open("postgres", u)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(connections)
	c, err := pglock.New(db, pglock.WithLeaseDuration(ttl), pglock.WithHeartbeatFrequency(ttl/3))
	if err == nil {
		err = c.TryCreateTable()
	}
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return &pglockLocker{c}, db.Close, nil
}

// Lock uses Client.Do, whose context ends when a heartbeat finds that the lock is lost.
func (l *pglockLocker) Lock(ctx context.Context, key string) (*torture.Held, error) {
	held, over, done := make(chan context.Context), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- l.client.Do(ctx, key, func(ctx context.Context, _ *pglock.Lock) error {
			held <- ctx
			<-over
			return nil
		})
	}()
	select {
	case lost := <-held:
		return &torture.Held{Lost: lost, Unlock: func() error { close(over); return <-done }}, nil
	case err := <-done:
		return nil, err
	}
}

// named is GET_LOCK on a connection for each lock.
type named struct{ db *sql.DB }

func openNamed(_ context.Context, store string, _ time.Duration) (torture.Locker, func() error, error) {
	u, err := url.Parse(store)
	if err != nil {
		return nil, nil, err
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User = "tcp", u.Host, u.User.Username()
	c.Passwd, _ = u.User.Password()
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(connections)
	return &named{db}, db.Close, nil
}

func (l *named) Lock(ctx context.Context, key string) (*torture.Held, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := ask(ctx, conn, "SELECT GET_LOCK(?, 3600)", key); err != nil {
		return nil, err
	}
	return &torture.Held{Unlock: func() error {
		if err := ask(context.Background(), conn, "SELECT RELEASE_LOCK(?)", key); err != nil {
			return err
		}
		return conn.Close()
	}}, nil
}

// ask asks the server for something of a named lock. If the answer is not 1, it ends the session,
// because that may have the lock.
func ask(ctx context.Context, conn *sql.Conn, query, key string) error {
	var yes sql.NullInt64
	err := conn.QueryRowContext(ctx, query, key).Scan(&yes)
	if err == nil && yes.Int64 != 1 {
		err = errors.New(query + " did not answer 1")
	}
	if err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // this is how database/sql ends one
	}
	return err
}
