package pgstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

// Store is a dibs.Store on a PostgreSQL database. It is safe for concurrent use.
type Store struct {
	options Options
	names   namer

	// The connections are the store's own. Renewals and settlements have theirs, so
	// that they wait neither for the application nor for claims.
	config *pgxpool.Config
	front  *pgxpool.Pool // claims, and what operators ask
	back   *pgxpool.Pool // renewals, settlements and pruning

	sql   *statements
	calls engine.Caller

	pooled     atomic.Bool // a pooler is in between: nobody can listen
	unprepared atomic.Bool // no statements are prepared: a connection may not be the same from one call to the next
	waiting    *waiting
	identity   atomic.Pointer[string] // that @meta has, once it was asked for
	clocks     clocks                 // that Check saw

	life       context.Context
	end        context.CancelFunc
	background sync.WaitGroup
	closed     atomic.Bool
}

var (
	_ dibs.Store    = (*Store)(nil)
	_ dibs.Notifier = (*Store)(nil)
	_ dibs.Batcher  = (*Store)(nil)
)

const (
	// frontConns and backConns is how many connections a store has at most, beside
	// the one that listens.
	frontConns = 4
	backConns  = 4
)

// ErrClosed is returned by calls on a closed store.
var ErrClosed = errors.New("pgstore: the store is closed")

// New returns a Store on the database that the pool is of. It makes connections of
// its own, up to 9, with what the pool was made with: its address, its user and
// its BeforeConnect and AfterConnect. The pool itself is not used, and may be
// closed at any time. Options may be nil.
//
// It asks the server a first question, and takes 8 s at most, with Options.Migrate
// a minute more; the errors are those
// of Open.
func New(ctx context.Context, pool *pgxpool.Pool, o *Options) (*Store, error) {
	if pool == nil {
		return nil, errors.New("pgstore: New was given no pool")
	}
	return newStore(ctx, pool.Config(), o)
}

func newStore(ctx context.Context, config *pgxpool.Config, o *Options) (*Store, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{options: options, names: namer{schema: options.Schema, prefix: options.Prefix}, config: own(config)}
	s.sql = s.names.statements()
	s.calls = engine.Caller{Most: most, Bytes: mostBytes, Busy: ErrLocked, Try: try, Stuck: s.stuck}
	s.life, s.end = context.WithCancel(context.Background())
	s.waiting = newWaiting(s)
	if s.front, err = pgxpool.NewWithConfig(s.life, sized(s.config, frontConns)); err == nil {
		s.back, err = pgxpool.NewWithConfig(s.life, sized(s.config, backConns))
	}
	if err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		// Not waited for: a connection that is being made may hang for a while.
		go s.Close()
		return nil, explain(err)
	}
	if options.PruneEvery > 0 {
		s.background.Go(s.prunes)
	}
	return s, nil
}

// own returns a configuration for the store's own connections: who they are is as
// before, what the application does with its own connections is left out.
func own(config *pgxpool.Config) *pgxpool.Config {
	c := config.Copy()
	c.PrepareConn, c.AfterRelease, c.BeforeClose = nil, nil, nil
	c.BeforeAcquire = nil                                                                //nolint:staticcheck // the application may still use it
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // a lost one is noticed, and replaced
	c.MinIdleConns = 0
	c.MaxConnIdleTime = 10 * time.Minute
	c.ConnConfig.Tracer = nil
	if c.ConnConfig.ConnectTimeout <= 0 { // pgx's own is two minutes, and Close waits for them
		c.ConnConfig.ConnectTimeout = connectLimit
	}
	if c.ConnConfig.RuntimeParams["application_name"] == "" {
		c.ConnConfig.RuntimeParams["application_name"] = "dibs"
	}
	return c
}

// sized returns a configuration with so many connections. One stays open, so that
// there is one when the server has none left to give.
func sized(config *pgxpool.Config, n int32) *pgxpool.Config {
	c := config.Copy()
	c.MaxConns, c.MinConns = n, 1
	c.MaxConnLifetime, c.MaxConnLifetimeJitter = 365*24*time.Hour, 0
	return c
}

// Close stops listening and pruning and closes the connections. Calls after it
// return an error.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.waiting.mu.Lock() // nobody is about to begin something
	s.end()
	s.waiting.mu.Unlock()
	s.background.Wait()
	for _, p := range []*pgxpool.Pool{s.front, s.back} {
		if p != nil {
			p.Close()
		}
	}
	return nil
}

func (s *Store) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// Batching implements dibs.Batcher: a batch is one commit, and while it waits for
// the disk the next one is made up.
func (s *Store) Batching() dibs.Batching {
	return dibs.Batching{Size: 256, Parallel: 1}
}
