package pgstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storekit"
)

// core implements Claim, Renew, Settle, Notify, List, ForceRelease, Forget, Resolve and Prune.
type core = remote.Store

// Store is a store.Store, store.Inspector and store.Pruner on a PostgreSQL database. It is safe
// for concurrent use.
type Store struct {
	*core
	server  *remote.Server
	options Options
	names   namer

	// The connections are the store's own. Renewals and settlements have a pool of their own, so
	// that they wait neither for the application nor for claims.
	config *pgxpool.Config
	front  *pgxpool.Pool // claims, and what operators read and force
	back   *pgxpool.Pool // renewals, settlements and pruning

	sql *statements
	met *product.Met // what the server is

	pooled     atomic.Bool // a transaction pooler is in between, so no connection can listen
	unprepared atomic.Bool // no statement is prepared, because each call may be on another connection
	subscriber *subscriber
	identity   atomic.Pointer[string] // of @meta; nil until it was read
	clock      storekit.Clock         // of Check
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Notifier  = (*Store)(nil)
	_ store.Batcher   = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Pruner    = (*Store)(nil)
)

const (
	// frontConns and backConns bound the connections of a store, beside the connection that
	// listens.
	frontConns = 4
	backConns  = 4

	// pollMin and pollMax bound the time between two polls.
	pollMin = 2 * time.Millisecond
	pollMax = 50 * time.Millisecond
)

// ErrClosed is returned by calls on a closed store.
var ErrClosed = errtype.New(errtype.Closed, "pgstore: the store is closed")

// New returns a Store on the database of the pool. It makes up to 9 connections of its own with
// the settings of the pool: its address, user, BeforeConnect and AfterConnect. It does not use
// the pool itself, which may be closed at any time. Options may be nil.
//
// It makes one call, and takes 8 s at most, with Options.Migrate a minute more. The errors are
// those of Open.
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
	s := &Store{options: options, names: namer{schema: options.Schema, prefix: options.Prefix}}
	s.sql = s.names.statements()
	s.subscriber = &subscriber{s: s}
	s.server = &remote.Server{
		Closer: remote.NewCloser(ErrClosed), MaxElements: maxElements, MaxBytes: maxBytes, MaxWaiters: options.MaxWaiters,
		MaxRecord: options.MaxRecord, PushedTTL: options.pushedTTL, PruneEvery: options.PruneEvery, PollMin: pollMin, PollMax: pollMax,
		Busy: ErrLocked, Try: s.try, Stuck: s.stuck, Claim: s.claim, Renew: s.renew, Settle: s.settle, Work: s.work, List: s.list,
		Sweep: func() remote.Sweep { return s.sweep(0) }, TakeSweep: s.takeSweep, KeepSweep: s.keepSweep,
		Process: s.subscriber.process.Load, Listens: s.listens, Unreached: s.subscriber.unreached,
	}
	s.core = remote.New(s.server)
	s.config = own(config, s.server.Context())
	if s.front, err = pgxpool.NewWithConfig(s.server.Context(), sized(s.config, frontConns)); err == nil {
		s.back, err = pgxpool.NewWithConfig(s.server.Context(), sized(s.config, backConns))
	}
	if err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		// In the background, because a connection that is being made may hang for a while.
		go s.Close()
		return nil, explain(err)
	}
	remote.Start(s.core)
	return s, nil
}

// own returns the settings of the store's connections. They have the application's address and
// user, but not its hooks. They end at once when closing does.
func own(config *pgxpool.Config, closing context.Context) *pgxpool.Config {
	c := config.Copy()
	c.PrepareConn, c.AfterRelease, c.BeforeClose = nil, nil, nil
	c.BeforeAcquire = nil                                                                //nolint:staticcheck // the application may still use it
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // a lost connection is noticed and replaced
	c.MinIdleConns = 0
	c.MaxConnIdleTime = 10 * time.Minute
	c.ConnConfig.Tracer = nil
	if c.ConnConfig.ConnectTimeout <= 0 { // pgx's own is two minutes, and Close waits for them
		c.ConnConfig.ConnectTimeout = connectLimit
	}
	if c.ConnConfig.RuntimeParams["application_name"] == "" {
		c.ConnConfig.RuntimeParams["application_name"] = "dibs"
	}
	before := c.BeforeConnect
	c.BeforeConnect = func(ctx context.Context, connecting *pgx.ConnConfig) error {
		if before != nil {
			if err := before(ctx, connecting); err != nil {
				return err
			}
		}
		uncancelled(connecting, closing)
		return nil
	}
	return c
}

// sized returns settings for n connections. One stays open, because the server may have none left
// later.
func sized(config *pgxpool.Config, n int32) *pgxpool.Config {
	c := config.Copy()
	c.MaxConns, c.MinConns = n, 1
	c.MaxConnLifetime, c.MaxConnLifetimeJitter = 365*24*time.Hour, 0
	return c
}

// Close stops listening and pruning and closes the connections. It returns nil. Calls after
// it return ErrClosed.
func (s *Store) Close() error {
	if !s.server.Close() {
		return nil
	}
	for _, p := range []*pgxpool.Pool{s.front, s.back} {
		if p != nil {
			p.Close()
		}
	}
	return nil
}

// Batching implements store.Batcher. A batch is one commit. The next batch is collected while
// that waits for the disk.
func (s *Store) Batching() store.Batching {
	return store.Batching{Size: 256, Parallel: 1}
}
