// Package peers has the locks of other libraries as torture.Lockers, for the benchmarks and the
// trial.
package peers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"cirello.io/pglock"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis/rueidislock"

	"github.com/dibs-go/dibs/proof/torture"
)

// Redsync is redsync with one pool, as in its README.
func Redsync(c *redis.Client, ttl time.Duration) torture.Locker {
	sync := redsync.New(redsyncpool.NewPool(c))
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		m := sync.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		return &torture.Held{Until: m.Until(), Unlock: func() error {
			_, err := m.Unlock()
			return err
		}}, nil
	})
}

// Redislock is bsm/redislock, which asks again each retry. With until it asks, in one more call, how
// long a lock lasts.
func Redislock(c *redis.Client, ttl, retry time.Duration, until bool) torture.Locker {
	client := redislock.New(c)
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Hour) // without a deadline it waits for one TTL only
		defer cancel()
		lock, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)})
		if err != nil {
			return nil, err
		}
		held := &torture.Held{Unlock: func() error { return lock.Release(context.Background()) }}
		if until {
			asked := time.Now()
			left, err := lock.TTL(ctx)
			if err != nil {
				_ = held.Unlock() // the lock is over after its TTL
				return nil, err
			}
			held.Until = asked.Add(left)
		}
		return held, nil
	})
}

// Rueidislock is rueidislock for one server. The caller calls end.
func Rueidislock(o rueidislock.LockerOption) (l torture.Locker, end func(), err error) {
	o.KeyMajority = 1
	locker, err := rueidislock.NewLocker(o)
	if err != nil {
		return nil, nil, err
	}
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		lost, cancel, err := locker.WithContext(ctx, key)
		if err != nil {
			return nil, err
		}
		return &torture.Held{Lost: lost, Unlock: func() error { cancel(); return nil }}, nil
	}), locker.Close, nil
}

// Advisory is pg_advisory_lock on a connection for each lock. It writes nothing and is gone with its
// session.
func Advisory(pool *pgxpool.Pool) torture.Locker {
	end := func(conn *pgxpool.Conn) { _ = conn.Hijack().Close(context.Background()) } // it may have a lock
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		conn, err := pool.Acquire(ctx)
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
	})
}

// NewPglock makes the table of pglock, and its client as its documentation sets it up: with a
// heartbeat at each third of the lease.
func NewPglock(db *sql.DB, ttl time.Duration) (*pglock.Client, error) {
	c, err := pglock.New(db, pglock.WithLeaseDuration(ttl), pglock.WithHeartbeatFrequency(ttl/3))
	if err == nil {
		err = c.TryCreateTable()
	}
	return c, err
}

// Pglock is pglock by Client.AcquireContext.
func Pglock(c *pglock.Client) torture.Locker {
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		lock, err := c.AcquireContext(ctx, key)
		if err != nil {
			return nil, err
		}
		return &torture.Held{Unlock: lock.Close}, nil
	})
}

// PglockDo is pglock by Client.Do, whose context ends when a heartbeat finds that the lock is lost.
func PglockDo(c *pglock.Client) torture.Locker {
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		held, over, done := make(chan context.Context), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- c.Do(ctx, key, func(ctx context.Context, _ *pglock.Lock) error {
				held <- ctx
				<-over
				return nil
			})
		}()
		select {
		case lost := <-held:
			return &torture.Held{Lost: lost, Unlock: func() error { close(over); return <-done }}, nil
		case err := <-done:
			return nil, fmt.Errorf("pglock: %w", err)
		}
	})
}
