package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storekit"
)

// shardCount is a power of two, large enough that two callers rarely use one shard at once.
const shardCount = 64

// Store is a store.Store in memory. New makes it. It is safe for concurrent use.
type Store struct {
	options Options
	started time.Time
	seed    maphash.Seed

	closed atomic.Bool
	fence  atomic.Int64 // the last one
	keys   atomic.Int64
	bytes  atomic.Int64 // of records and progress

	listeners storekit.Listeners
	sweeper   sweeper
	reclaimed atomic.Uint32 // the shard with which the next reclaim begins
	swept     atomic.Uint64 // how much all sweeps have removed

	shards [shardCount]shard
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Notifier  = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Pruner    = (*Store)(nil)
	_ store.Batcher   = (*Store)(nil)
)

// New returns an empty store. Nil options mean the defaults. The error names the field that
// is out of range. Close ends the store's timers. Without Close, the store stays in memory
// until everything in it has expired.
func New(o *Options) (*Store, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{options: options, started: time.Now(), seed: maphash.MakeSeed()}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.store, sh.entries, sh.soonest = s, map[store.Key]*entry{}, never
		sh.fence = func() int64 { return s.nextFence(sh.now) }
	}
	return s, nil
}

// Close deletes everything and ends the store's timers. Later calls return an error that is
// store.ErrClosed. Close always returns nil.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.sweeper.stop()
	for i := range s.shards {
		s.shards[i].close()
	}
	s.keys.Store(0)
	s.bytes.Store(0)
	return nil
}

// Claim implements store.Store. An answer's Err is store.ErrFull when a new key or a new place
// would be beyond a limit.
func (s *Store) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	for i := range claims {
		c, a := &claims[i], &answers[i]
		if a.Err = c.Validate(); a.Err == nil {
			a.Err = s.on(c.Key, c.Token, func(sh *shard, now int64) error {
				*a = store.Answer{}
				return sh.claim(c, a, now)
			})
		}
	}
	return nil
}

// Renew implements store.Store. An element's error is store.ErrFull when its progress would be
// beyond MaxBytes; the lease is then as it was.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	for i := range renewals {
		r := &renewals[i]
		if errs[i] = r.Validate(); errs[i] == nil {
			errs[i] = s.step(r.Key, r.Token, func(sh *shard, e *entry, st *engine.State) error { return sh.renew(e, st, r) })
		}
	}
	return nil
}

// Settle implements store.Store. An element's error is store.ErrFull when its record would be
// beyond MaxBytes; the token then holds the key as before.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	for i := range settlements {
		x := &settlements[i]
		if errs[i] = x.Validate(); errs[i] == nil {
			errs[i] = s.step(x.Key, x.Token, func(sh *shard, e *entry, st *engine.State) error { return sh.settle(e, st, x) })
		}
	}
	return nil
}

// on runs do under the lock of the key's shard, and again while do lacks room that reclaim
// can make. self is the caller's token, which needs no wake-up.
func (s *Store) on(key store.Key, self store.Token, do func(sh *shard, now int64) error) error {
	sh := s.shard(key)
	for {
		now, swept := s.now(), s.swept.Load()
		sh.mu.Lock()
		err := do(sh, now)
		sh.unlock(self)
		// Room that a sweep on another goroutine has made is as good.
		if err != errTooManyKeys && err != errNoBytes || !s.reclaim(now) && s.swept.Load() == swept {
			return err
		}
	}
}

// step runs do on the entry of a key. It returns store.ErrLost if there is none.
func (s *Store) step(key store.Key, self store.Token, do func(*shard, *entry, *engine.State) error) error {
	return s.on(key, self, func(sh *shard, now int64) error {
		e := sh.entries[key]
		if e == nil {
			return store.ErrLost
		}
		err := do(sh, e, sh.begin(e, now))
		sh.finish(e, now)
		return err
	})
}

// Batching implements store.Batcher: each call is made at once on the caller's goroutine,
// because it takes less time than to form a batch.
func (s *Store) Batching() store.Batching { return store.Batching{Direct: true, Immediate: true} }

// usable returns why the store cannot be used.
func (s *Store) usable(ctx context.Context) error {
	if s.closed.Load() {
		return errClosed
	}
	return ctx.Err()
}

var errClosed = fmt.Errorf("memstore: %w", store.ErrClosed)

// never is later than everything that expires.
const never int64 = 1<<63 - 1

// now returns the time since New in µs, by the process's monotonic clock. It is never 0.
func (s *Store) now() int64 { return time.Since(s.started).Microseconds() + 1 }

// nextFence returns the fence of a new grant: the clock in µs, which makes fences rise
// across restarts, or one more than the last fence.
func (s *Store) nextFence(now int64) int64 {
	clock := max(s.started.UnixMicro()+now, 1)
	for {
		last := s.fence.Load()
		next := max(last+1, clock)
		if s.fence.CompareAndSwap(last, next) {
			return next
		}
	}
}

// take takes n bytes of MaxBytes and reports whether they were free. A negative n gives bytes
// back.
func (s *Store) take(n int) bool {
	if s.bytes.Add(int64(n)) > s.options.MaxBytes && n > 0 {
		s.bytes.Add(int64(-n))
		return false
	}
	return true
}

// shard returns the shard of a key.
func (s *Store) shard(k store.Key) *shard {
	h := maphash.String(s.seed, k.Name)
	if k.Namespace != "" {
		h ^= bits.RotateLeft64(maphash.String(s.seed, k.Namespace), 29)
	}
	return &s.shards[h%shardCount]
}
