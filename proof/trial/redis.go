package main

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/dibs-go/dibs/proof/torture"
)

// goRedis opens a client with a connection for each caller.
func goRedis(url string) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.PoolSize = connections
	return redis.NewClient(o), nil
}

// setNX is SET NX with a time to live, as it is written by hand. With a token, only the holder
// deletes the key; without one, every caller that has had it does.
type setNX struct {
	client *redis.Client
	token  bool
}

func openSetNX(token bool) opener {
	return func(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
		c, err := goRedis(url)
		if err != nil {
			return nil, nil, err
		}
		return &timed{ttl, (&setNX{c, token}).try}, c.Close, nil
	}
}

var compareAndDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end`)

func (l *setNX) try(ctx context.Context, key string, ttl time.Duration) (unlock func() error, err error) {
	value := "1"
	if l.token {
		value = rand.Text()
	}
	ok, err := l.client.SetNX(ctx, key, value, ttl).Result()
	if err != nil || !ok {
		return nil, err
	}
	return func() error {
		if l.token {
			return compareAndDelete.Run(context.Background(), l.client, []string{key}, value).Err()
		}
		return l.client.Del(context.Background(), key).Err()
	}, nil
}

// timed waits for a lock that is tried, and that is over after its time to live.
type timed struct {
	ttl time.Duration
	// try returns nil without an error if another caller has the lock.
	try func(ctx context.Context, key string, ttl time.Duration) (unlock func() error, err error)
}

const retryEvery = 20 * time.Millisecond

func (l *timed) Lock(ctx context.Context, key string) (*torture.Held, error) {
	for {
		until := time.Now().Add(l.ttl) // before the call leaves, so that it is never too late
		unlock, err := l.try(ctx, key, l.ttl)
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
}

type redsyncLocker struct {
	sync *redsync.Redsync
	ttl  time.Duration
}

func openRedsync(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	c, err := goRedis(url)
	if err != nil {
		return nil, nil, err
	}
	return &redsyncLocker{redsync.New(redsyncpool.NewPool(c)), ttl}, c.Close, nil
}

func (l *redsyncLocker) Lock(ctx context.Context, key string) (*torture.Held, error) {
	m := l.sync.NewMutex(key, redsync.WithExpiry(l.ttl), redsync.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return &torture.Held{Until: m.Until(), Unlock: func() error {
		_, err := m.Unlock()
		return err
	}}, nil
}

type redislockLocker struct {
	client *redislock.Client
	ttl    time.Duration
}

func openRedislock(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	c, err := goRedis(url)
	if err != nil {
		return nil, nil, err
	}
	return &redislockLocker{redislock.New(c), ttl}, c.Close, nil
}

func (l *redislockLocker) Lock(ctx context.Context, key string) (*torture.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // without a deadline it waits for one TTL only
	defer cancel()
	lock, err := l.client.Obtain(ctx, key, l.ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retryEvery)})
	if err != nil {
		return nil, err
	}
	unlock := func() error { return lock.Release(context.Background()) }
	asked := time.Now()
	left, err := lock.TTL(ctx)
	if err != nil {
		_ = unlock() // the lock is over after its TTL
		return nil, err
	}
	return &torture.Held{Until: asked.Add(left), Unlock: unlock}, nil
}

type rueidisLocker struct{ locker rueidislock.Locker }

func openRueidislock(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	o, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: o, KeyMajority: 1, NoLoopTracking: true, KeyValidity: ttl, TryNextAfter: ttl})
	if err != nil {
		return nil, nil, err
	}
	return &rueidisLocker{l}, func() error { l.Close(); return nil }, nil
}

func (l *rueidisLocker) Lock(ctx context.Context, key string) (*torture.Held, error) {
	lost, cancel, err := l.locker.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return &torture.Held{Lost: lost, Unlock: func() error { cancel(); return nil }}, nil
}
