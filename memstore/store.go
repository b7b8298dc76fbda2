package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// shardCount is a power of two, large enough that two callers rarely meet in
// one shard and that a shard's table is small.
const shardCount = 64

// Store is a dibs.Store in memory. It is made by New and safe for concurrent
// use.
type Store struct {
	options Options
	started time.Time // what instants are counted from
	seed    maphash.Seed

	closed atomic.Bool
	fence  atomic.Uint64 // the last one granted
	keys   atomic.Int64
	bytes  atomic.Int64 // of records and progress

	listeners backend.Listeners
	sweeper   sweeper
	reclaimed atomic.Uint32 // the shard where reclaim goes on

	shards [shardCount]shard
}

var (
	_ dibs.Store     = (*Store)(nil)
	_ dibs.Notifier  = (*Store)(nil)
	_ dibs.Inspector = (*Store)(nil)
	_ dibs.Pruner    = (*Store)(nil)
	_ dibs.Batcher   = (*Store)(nil)
)

// New returns an empty store. Nil options mean the defaults; the error names
// the field that is out of range. Close ends the store's timers; a store that
// nobody uses any more needs no Close to be collected.
func New(o *Options) (*Store, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{options: options, started: time.Now(), seed: maphash.MakeSeed()}
	s.sweeper.at.Store(int64(never))
	for i := range s.shards {
		s.shards[i].store = s
		s.shards[i].init()
	}
	return s, nil
}

// Close forgets everything and ends the store's timers. Calls made later fail
// with an error that is dibs.ErrClosed. It always returns nil.
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

// Claim implements dibs.Store. An answer's Err is dibs.ErrFull when a new key
// or a new place would be beyond a limit.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	t := time.Now()
	now := instant(t.Sub(s.started))
	for i := range claims {
		c, a := &claims[i], &answers[i]
		if a.Err = c.Validate(); a.Err != nil {
			continue
		}
		hash := s.hash(c.Key)
		sh := s.shard(hash)
		sh.mu.Lock()
		sh.claim(hash, c, a, now, t)
		sh.unlock(c.Token)
		for a.Err == errTooManyKeys && s.reclaim(now) {
			*a = dibs.Answer{}
			sh.mu.Lock()
			sh.claim(hash, c, a, now, t)
			sh.unlock(c.Token)
		}
	}
	return nil
}

// Renew implements dibs.Store. An element's error is dibs.ErrFull when its
// progress would be beyond MaxBytes; the lease is then as it was.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	now := s.now()
	for i := range renewals {
		r := &renewals[i]
		if errs[i] = r.Validate(); errs[i] != nil {
			continue
		}
		hash := s.hash(r.Key)
		sh := s.shard(hash)
		sh.mu.Lock()
		errs[i] = sh.renew(hash, r, now)
		sh.unlock(r.Token)
		for errs[i] == errNoBytes && s.reclaim(now) {
			sh.mu.Lock()
			errs[i] = sh.renew(hash, r, now)
			sh.unlock(r.Token)
		}
	}
	return nil
}

// Settle implements dibs.Store. An element's error is dibs.ErrFull when its
// record would be beyond MaxBytes; the token then holds the key as before.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	now := s.now()
	for i := range settlements {
		x := &settlements[i]
		if errs[i] = x.Validate(); errs[i] != nil {
			continue
		}
		hash := s.hash(x.Key)
		sh := s.shard(hash)
		sh.mu.Lock()
		errs[i] = sh.settle(hash, x, now)
		sh.unlock(x.Token)
		for errs[i] == errNoBytes && s.reclaim(now) {
			sh.mu.Lock()
			errs[i] = sh.settle(hash, x, now)
			sh.unlock(x.Token)
		}
	}
	return nil
}

// Batching implements dibs.Batcher: each call is made at once, on the caller's
// goroutine, because an answer takes less time than waiting for company.
func (s *Store) Batching() dibs.Batching { return dibs.Batching{Direct: true, Immediate: true} }

// usable returns why the store cannot be used.
func (s *Store) usable(ctx context.Context) error {
	if s.closed.Load() {
		return errClosed
	}
	return ctx.Err()
}

var errClosed = fmt.Errorf("memstore: %w", dibs.ErrClosed)

// instant is a moment on the process's monotonic clock, as the time since the
// store was made.
type instant int64

// never is the instant that does not come.
const never instant = 1<<63 - 1

// after returns the instant d later, or never where that is beyond it.
func (t instant) after(d time.Duration) instant {
	if d := instant(d); d < never-t {
		return t + d
	}
	return never
}

// until returns the time from t to a later instant.
func (t instant) until(later instant) time.Duration { return time.Duration(later - t) }

func (s *Store) now() instant { return instant(time.Since(s.started)) }

// nextFence returns the fence of a new grant: the wall clock in µs, which lets
// fences rise across restarts, unless that would not rise.
func (s *Store) nextFence(t time.Time) uint64 {
	clock := uint64(max(t.UnixMicro(), 1))
	for {
		last := s.fence.Load()
		next := max(last+1, clock)
		if s.fence.CompareAndSwap(last, next) {
			return next
		}
	}
}

// take takes n bytes off what MaxBytes leaves, and reports whether it could.
// A negative n gives them back.
func (s *Store) take(n int) bool {
	if s.bytes.Add(int64(n)) > s.options.MaxBytes && n > 0 {
		s.bytes.Add(int64(-n))
		return false
	}
	return true
}

// hash returns where a key is kept: the shard by the lowest bits, the place in
// its table by the highest.
func (s *Store) hash(k dibs.Key) uint64 {
	h := maphash.String(s.seed, k.Name)
	if k.Namespace != "" {
		h ^= bits.RotateLeft64(maphash.String(s.seed, k.Namespace), 29)
	}
	return h
}

func (s *Store) shard(hash uint64) *shard { return &s.shards[hash%shardCount] }
