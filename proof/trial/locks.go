package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq" // pglock's documentation uses it
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/peers"
	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
	"github.com/dibs-go/dibs/stores/casstore/etcd"
)

const (
	// connections is how many connections a client may open.
	connections = 64
	// retryEvery is the time between two tries of a lock that is tried.
	retryEvery = 20 * time.Millisecond
)

func openDibs(ctx context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	s, err := anystore.Open(ctx, url, anystore.ToUse)
	if err != nil {
		return nil, nil, err
	}
	return dibsOn(s.Store, s.Close, ttl)
}

func openDibsEtcd(ctx context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	c, err := peers.DialEtcd("http://"+strings.TrimPrefix(url, "etcd://"), ttl)
	if err != nil {
		return nil, nil, err
	}
	s, err := etcd.Open(ctx, c, nil)
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return dibsOn(s, func() error { return errors.Join(s.Close(), c.Close()) }, ttl)
}

// dibsOn is the lock of a client on a store, which end closes.
func dibsOn(s store.Store, end func() error, ttl time.Duration) (torture.Locker, func() error, error) {
	c, err := dibs.New(s, &dibs.Options{Namespace: "trial", TTL: ttl})
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		lease, err := c.Acquire(ctx, key, &dibs.AcquireOptions{Wait: time.Hour, Detach: true})
		if err != nil {
			return nil, err
		}
		return &torture.Held{Lost: lease.Context(), Fence: lease.Fence(), Unlock: lease.Release}, nil
	}), func() error { return errors.Join(c.Close(), end()) }, nil
}

// tried is a try of a lock. It returns nil without an error if another caller has the lock.
type tried func(ctx context.Context, key string, ttl time.Duration) (unlock func() error, err error)

// waiting waits for a lock that is tried, and that is over after its time to live.
func waiting(try tried, ttl time.Duration) torture.Locker {
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		for {
			until := time.Now().Add(ttl) // before the call leaves, so that it is never too late
			unlock, err := try(ctx, key, ttl)
			if err != nil {
				return nil, err
			}
			if unlock != nil {
				return &torture.Held{Until: until, Unlock: unlock}, nil
			}
			select {
			case <-time.After(retryEvery):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	})
}

// onRedis opens a lock of a client of go-redis with a connection for each caller.
func onRedis(of func(c *redis.Client, ttl time.Duration) torture.Locker) opener {
	return func(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
		o, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, err
		}
		o.PoolSize = connections
		c := redis.NewClient(o)
		return of(c, ttl), c.Close, nil
	}
}

var compareAndDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end`)

// openSetNX is SET NX with a time to live, as it is written by hand. With a token, only the holder
// deletes the key; without one, every caller that has had it does.
func openSetNX(token bool) opener {
	return onRedis(func(c *redis.Client, ttl time.Duration) torture.Locker {
		return waiting(func(ctx context.Context, key string, ttl time.Duration) (unlock func() error, err error) {
			value := "1"
			if token {
				value = rand.Text()
			}
			ok, err := c.SetNX(ctx, key, value, ttl).Result()
			if err != nil || !ok {
				return nil, err
			}
			return func() error {
				if token {
					return compareAndDelete.Run(context.Background(), c, []string{key}, value).Err()
				}
				return c.Del(context.Background(), key).Err()
			}, nil
		}, ttl)
	})
}

func openRueidislock(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	o, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	l, end, err := peers.Rueidislock(rueidislock.LockerOption{ClientOption: o, NoLoopTracking: true, KeyValidity: ttl, TryNextAfter: ttl})
	return l, func() error { end(); return nil }, err
}

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

// onPostgres opens a lock of a pool of pgx with a connection for each caller.
func onPostgres(of func(ctx context.Context, pool *pgxpool.Pool, ttl time.Duration) (torture.Locker, error)) opener {
	return func(ctx context.Context, store string, ttl time.Duration) (torture.Locker, func() error, error) {
		u, err := pgURL(store)
		if err != nil {
			return nil, nil, err
		}
		config, err := pgxpool.ParseConfig(u)
		if err != nil {
			return nil, nil, err
		}
		config.MaxConns = connections
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, nil, err
		}
		l, err := of(ctx, pool, ttl)
		return l, func() error { pool.Close(); return nil }, err
	}
}

var openAdvisory = onPostgres(func(_ context.Context, pool *pgxpool.Pool, _ time.Duration) (torture.Locker, error) {
	return peers.Advisory(pool), nil
})

// pooled starts a PostgreSQL behind a PgBouncer in transaction mode. The clients use the simple
// protocol, which it can pass on.
func pooled(owner servertest.Owner) *fault.Target {
	s := servertest.Postgres(owner, &servertest.PostgresOptions{NoSync: true, MaxConnections: connections})
	return &fault.Target{URL: servertest.PgBouncer(owner, s, nil).URL() + "&default_query_exec_mode=simple_protocol"}
}

// openRow is a lock in a table: a row with the time at which it is over.
var openRow = onPostgres(func(ctx context.Context, pool *pgxpool.Pool, ttl time.Duration) (torture.Locker, error) {
	_, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS trial_locks (name text PRIMARY KEY, owner text NOT NULL, until timestamptz NOT NULL)`)
	return waiting(func(ctx context.Context, key string, ttl time.Duration) (unlock func() error, err error) {
		owner := rand.Text()
		tag, err := pool.Exec(ctx, `INSERT INTO trial_locks AS l VALUES ($1, $2, now() + $3)
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until WHERE l.until < now()`, key, owner, ttl)
		if err != nil || tag.RowsAffected() == 0 {
			return nil, err
		}
		return func() error {
			_, err := pool.Exec(context.Background(), "DELETE FROM trial_locks WHERE name = $1 AND owner = $2", key, owner)
			return err
		}, nil
	}, ttl), err
})

func openPglock(_ context.Context, store string, ttl time.Duration) (torture.Locker, func() error, error) {
	u, err := pgURL(store)
	if err != nil {
		return nil, nil, err
	}
	db, err := sql.Open("postgres", u)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(connections)
	c, err := peers.NewPglock(db, ttl)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return peers.PglockDo(c), db.Close, nil
}

// openNamed is GET_LOCK on a connection for each lock.
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
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		conn, err := db.Conn(ctx)
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
	}), db.Close, nil
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

func startEtcd(owner servertest.Owner) *fault.Target {
	clock := servertest.NewClock(owner)
	s := peers.EtcdServer(owner, clock)
	return &fault.Target{URL: "etcd://" + s.Addr(), Server: s, Clock: clock, Clockless: true, Durable: true}
}

func openEtcd(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	return peers.OpenEtcd("http://"+strings.TrimPrefix(url, "etcd://"), ttl)
}
