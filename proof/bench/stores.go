package main

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq" // pglock's documentation uses it
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/peers"
	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
	"github.com/dibs-go/dibs/stores/mysqlstore"
	"github.com/dibs-go/dibs/stores/pgstore"
	"github.com/dibs-go/dibs/stores/redisstore"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// openMemory makes a store in memory.
func openMemory(_ context.Context, _ config, b *candidates) {
	store := get(memstore.New(nil))
	b.enter(store, store.Close)
}

// folder makes a folder that ends with the candidates.
func (b *candidates) folder() string {
	dir := get(os.MkdirTemp("", "dibs-bench-"))
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// openSQLite makes a file, which waits for its disk.
func openSQLite(_ context.Context, _ config, b *candidates) {
	store := get(sqlitestore.Open(filepath.Join(b.folder(), "dibs.db"), nil))
	b.enter(store, store.Close)
}

// The names of the peers on Redis.
const (
	redsyncName = "redsync"
	bsmName     = "redislock"
	rueidisName = "rueidislock"
)

var redisPeers = []string{redsyncName, bsmName, rueidisName}

// openRedis starts a Redis without persistence, and its candidates.
func openRedis(ctx context.Context, c config, b *candidates) { onRedis(nil)(ctx, c, b) }

// onRedis starts a Redis and its candidates.
func onRedis(o *servertest.RedisOptions) opener {
	return func(_ context.Context, _ config, b *candidates) {
		// The server has one processor to itself. Otherwise the callers take it away
		// in the middle of an answer, and what is measured is the scheduler.
		all := runtime.GOMAXPROCS(max(1, runtime.NumCPU()-1))
		b.Cleanup(func() { runtime.GOMAXPROCS(all) })
		b.redis = servertest.Redis(b, o)
		b.rueidis = get(rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{b.redis.Addr()}, DisableCache: true, ForceSingleClient: true,
		}))
		b.Cleanup(b.rueidis.Close)
		store := get(redisstore.New(b.rueidis, nil))
		b.enter(store, store.Close)

		// go-redis gives each caller a connection: as many as there are callers,
		// so that none waits for one.
		pooled := redis.NewClient(&redis.Options{Addr: b.redis.Addr(), PoolSize: 512, MinIdleConns: 64})
		b.Cleanup(func() { _ = pooled.Close() })
		other, end, err := peers.Rueidislock(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{b.redis.Addr()}, ForceSingleClient: true}, KeyValidity: lockTTL,
		})
		must(err)
		b.Cleanup(end)
		b.lockers[floorName] = []locker{floor(b.rueidis)}
		b.lockers[redsyncName] = []locker{peers.Redsync(pooled, lockTTL)}
		b.lockers[bsmName] = []locker{peers.Redislock(pooled, lockTTL, 10*time.Millisecond, false)} // its own example's way to wait
		b.lockers[rueidisName] = []locker{other}
	}
}

var compareAndDelete = rueidis.NewLuaScript(
	`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end`)

// floor is the least that a lock on Redis can be: SET NX with a time to
// live, and a delete that compares. It does not wait, and guards against
// nothing else.
func floor(c rueidis.Client) locker {
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		token := store.NewToken()
		value := string(token[:])
		if err := c.Do(ctx, c.B().Set().Key(key).Value(value).Nx().Px(lockTTL).Build()).Error(); err != nil {
			return nil, err
		}
		return &torture.Held{Unlock: func() error {
			return compareAndDelete.Exec(ctx, c, []string{key}, []string{value}).Error()
		}}, nil
	})
}

// The names of what is measured on PostgreSQL.
const (
	pglockName   = "pglock"
	noBeatName   = "pglock on pgx, without heartbeats"
	advisoryName = "advisory lock"
	tableName    = "INSERT … ON CONFLICT" // a table of leases as people write it by hand
)

// pglocks are pglock as its documentation sets it up, and as it is fastest: without
// the heartbeat that each lock sends when it begins, and on the faster driver.
var pglocks = []string{pglockName, noBeatName}

// openPostgres starts a server with its own settings, which waits for its disk, and
// its candidates.
func openPostgres(ctx context.Context, _ config, b *candidates) {
	url := servertest.Postgres(b, &servertest.PostgresOptions{MaxConnections: 6*callersConns + 50}).URL()
	for range 2 { // processes
		store := get(pgstore.Open(ctx, url, &pgstore.Options{Migrate: true}))
		b.enter(store, store.Close)
	}
	b.enterSingly(func() (dibs.Store, func() error) {
		store := get(pgstore.Open(ctx, url, &pgstore.Options{PruneEvery: -1}))
		return store, store.Close
	})
	b.lockers[advisoryName] = []locker{peers.Advisory(b.pgxPool(ctx, url))}
	b.lockers[pglockName] = []locker{peers.Pglock(get(peers.NewPglock(b.sqlPool(sql.Open("postgres", url)), lockTTL)))}
	b.lockers[noBeatName] = []locker{peers.Pglock(get(pglock.UnsafeNew(b.pgxSQL(url), pglock.WithLeaseDuration(lockTTL), pglock.WithHeartbeatFrequency(0))))}
}

// pgxPool opens a pool with a connection for each caller.
func (b *candidates) pgxPool(ctx context.Context, url string) *pgxpool.Pool {
	config := get(pgxpool.ParseConfig(url))
	config.MaxConns = callersConns
	pool := get(pgxpool.NewWithConfig(ctx, config))
	b.Cleanup(pool.Close)
	return pool
}

// pgxSQL opens a pool of database/sql by pgx.
func (b *candidates) pgxSQL(url string) *sql.DB {
	return b.sqlPool(stdlib.OpenDB(*get(pgx.ParseConfig(url))), nil)
}

// sqlPool gives a pool a connection for each caller, which it keeps.
func (b *candidates) sqlPool(db *sql.DB, err error) *sql.DB {
	must(err)
	b.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(callersConns)
	db.SetMaxIdleConns(callersConns)
	return db
}

// openBySQL starts a server as openPostgres does. Ours is two statements of SQL, on a connection for each caller.
func openBySQL(ctx context.Context, _ config, b *candidates) {
	pool := b.pgxPool(ctx, servertest.Postgres(b, &servertest.PostgresOptions{MaxConnections: callersConns + 50}).URL())
	must(pgstore.Migrate(ctx, pool, nil))
	get(pool.Exec(ctx, "CREATE TABLE lease (name text PRIMARY KEY, owner text NOT NULL, ends timestamptz NOT NULL)"))
	for name, sql := range map[string][2]string{
		ours: {"SELECT state = 'granted' FROM dibs_claim($1, $2, '10 s')", "SELECT dibs_release($1, $2)"},
		advisoryName: {
			"SELECT pg_try_advisory_lock(hashtextextended($1 || left($2, 0), 0))", "SELECT pg_advisory_unlock(hashtextextended($1 || left($2, 0), 0))",
		},
		tableName: {
			`INSERT INTO lease (name, owner, ends) VALUES ($1, $2, now() + interval '10 s')
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, ends = excluded.ends WHERE lease.ends < now() RETURNING true`,
			"DELETE FROM lease WHERE name = $1 AND owner = $2",
		},
	} {
		b.lockers[name] = []locker{statements(pool, sql[0], sql[1])}
	}
}

// statements are a lock of two statements, on one connection.
func statements(pool *pgxpool.Pool, lock, free string) locker {
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		t := store.NewToken()
		token := hex.EncodeToString(t[:])
		var granted bool
		if err = conn.QueryRow(ctx, lock, key, token).Scan(&granted); err == nil && !granted {
			err = errHeld
		}
		if err != nil {
			conn.Release()
			return nil, err
		}
		return &torture.Held{Unlock: func() error {
			defer conn.Release()
			_, err := conn.Exec(context.WithoutCancel(ctx), free, key, token)
			return err
		}}, nil
	})
}

// openMySQL starts a MariaDB server with its own settings, which waits for its disk.
func openMySQL(ctx context.Context, _ config, b *candidates) {
	url := servertest.MariaDB(b, &servertest.MariaDBOptions{MaxConnections: 5 * callersConns}).URL()
	for range 2 { // processes
		store := get(mysqlstore.Open(ctx, url, &mysqlstore.Options{Migrate: true}))
		b.enter(store, store.Close)
	}
	b.enterSingly(func() (dibs.Store, func() error) {
		store := get(mysqlstore.Open(ctx, url, &mysqlstore.Options{PruneEvery: -1}))
		return store, store.Close
	})
}

const (
	// singlyName is a store that is called for one key at a time, on a connection for each
	// caller: the same statements, without what the client makes of them.
	singlyName = "one by one"
	// callersConns is how many connections a client has that needs one for each caller.
	callersConns = 64
	// storeConns is how many calls of one kind a store of PostgreSQL or MySQL makes at
	// once, with a connection each.
	storeConns = 4
)

// enterSingly adds a lock by calls of stores that have a connection for each caller.
func (b *candidates) enterSingly(open func() (dibs.Store, func() error)) {
	slots := make(chan dibs.Store, callersConns) // one for each connection
	for range callersConns / storeConns {
		store, closeStore := open()
		b.Cleanup(func() { _ = closeStore() })
		for range storeConns {
			slots <- store
		}
	}
	b.lockers[singlyName] = []locker{torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		s := <-slots
		k, token := dibs.Key{Name: key}, store.NewToken()
		answers, errs := make([]store.Answer, 1), make([]error, 1)
		claim := store.Claim{Key: k, Token: token, TTL: lockTTL, Permits: 1, Weight: 1, Owner: store.Owner{Label: "bench"}}
		err := s.Claim(ctx, []store.Claim{claim}, answers)
		if err == nil && answers[0].State != store.Granted {
			err = errors.Join(errHeld, answers[0].Err)
		}
		if err != nil {
			slots <- s
			return nil, err
		}
		return &torture.Held{Unlock: func() error {
			defer func() { slots <- s }()
			err := s.Settle(ctx, []store.Settlement{{Key: k, Token: token}}, errs)
			return errors.Join(err, errs[0])
		}}, nil
	})}
}
