package main

import (
	"context"
	"runtime"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// redisBench is a Redis server and its candidates.
type redisBench struct {
	*candidates
	server *servertest.RedisServer
	client rueidis.Client // of dibs and the floor
}

const lockTTL = 30 * time.Second

// The names of the peers on Redis.
const (
	redsyncName = "redsync"
	bsmName     = "redislock"
	rueidisName = "rueidislock"
)

// openRedis is newRedisBench as an opener.
func openRedis(context.Context) (*candidates, error) {
	b, err := newRedisBench(nil)
	if err != nil {
		return nil, err
	}
	return b.candidates, nil
}

var redisPeers = []string{redsyncName, bsmName, rueidisName}

func newRedisBench(o *servertest.RedisOptions) (b *redisBench, err error) {
	b = &redisBench{candidates: newCandidates()}
	// The server has one processor to itself. Otherwise the callers take it away
	// in the middle of an answer, and what is measured is the scheduler.
	all := runtime.GOMAXPROCS(max(1, runtime.NumCPU()-1))
	b.close = append(b.close, func() { runtime.GOMAXPROCS(all) })
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	b.server = servertest.Redis(b.scope, o)
	if b.client, err = rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{b.server.Addr()}, DisableCache: true, ForceSingleClient: true,
	}); err != nil {
		return b, err
	}
	b.close = append(b.close, b.client.Close)
	store, err := redisstore.New(b.client, nil)
	if err != nil {
		return b, err
	}
	if err := b.enter(store, store.Close); err != nil {
		return b, err
	}

	// go-redis gives each caller a connection: as many as there are callers,
	// so that none waits for one.
	pooled := redis.NewClient(&redis.Options{Addr: b.server.Addr(), PoolSize: 512, MinIdleConns: 64})
	b.close = append(b.close, func() { _ = pooled.Close() })
	others, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{b.server.Addr()}, ForceSingleClient: true},
		KeyMajority:  1, KeyValidity: lockTTL,
	})
	if err != nil {
		return b, err
	}
	b.close = append(b.close, others.Close)
	b.lockers[floorName] = []locker{floorLocker{b.client}}
	b.lockers[redsyncName] = []locker{redsyncLocker{redsync.New(redsyncpool.NewPool(pooled))}}
	b.lockers[bsmName] = []locker{bsmLocker{redislock.New(pooled)}}
	b.lockers[rueidisName] = []locker{rueidisLocker{others}}
	return b, nil
}

// floorLocker is the least that a lock on Redis can be: SET NX with a time to
// live, and a delete that compares. It does not wait, and guards against
// nothing else.
type floorLocker struct{ client rueidis.Client }

var compareAndDelete = rueidis.NewLuaScript(
	`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end`)

func (l floorLocker) lock(ctx context.Context, key string, section func()) error {
	token := store.NewToken()
	value := string(token[:])
	if err := l.client.Do(ctx, l.client.B().Set().Key(key).Value(value).Nx().Px(lockTTL).Build()).Error(); err != nil {
		return err
	}
	section()
	return compareAndDelete.Exec(ctx, l.client, []string{key}, []string{value}).Error()
}

type redsyncLocker struct{ sync *redsync.Redsync }

func (l redsyncLocker) lock(ctx context.Context, key string, section func()) error {
	m := l.sync.NewMutex(key, redsync.WithExpiry(lockTTL), redsync.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	section()
	_, err := m.UnlockContext(ctx)
	return err
}

type bsmLocker struct{ client *redislock.Client }

func (l bsmLocker) lock(ctx context.Context, key string, section func()) error {
	// Its own example's way to wait.
	held, err := l.client.Obtain(ctx, key, lockTTL, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond),
	})
	if err != nil {
		return err
	}
	section()
	return held.Release(ctx)
}

type rueidisLocker struct{ locker rueidislock.Locker }

func (l rueidisLocker) lock(ctx context.Context, key string, section func()) error {
	_, cancel, err := l.locker.WithContext(ctx, key)
	if err != nil {
		return err
	}
	section()
	cancel()
	return nil
}
