package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storekit"
)

// core implements Claim, Renew, Settle, Notify, List, ForceRelease, Forget, Resolve and Prune.
type core = remote.Store

// Store is a store.Store, store.Inspector and store.Pruner on a MySQL or MariaDB database. It is
// safe for concurrent use.
type Store struct {
	*core
	server  *remote.Server
	options Options
	names   namer
	config  *mysql.Config

	// The connections are the store's own. Renewals and settlements have a pool of their own, so
	// that they wait neither for the application nor for claims.
	front *sql.DB // claims, and what operators read and force
	back  *sql.DB // renewals, settlements and pruning
	polls *sql.DB

	met    *product.Met   // what the server is
	packet int            // max_allowed_packet, in bytes
	clock  storekit.Clock // of Check
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Notifier  = (*Store)(nil)
	_ store.Batcher   = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Pruner    = (*Store)(nil)
)

const (
	// maxElements bounds the elements of one transaction, and maxBytes their size in bytes. A
	// single element may be larger.
	maxElements = 256
	maxBytes    = 8 << 20

	// pollMin and pollMax bound the time between two polls.
	pollMin = time.Millisecond
	pollMax = 8 * time.Millisecond
)

// New returns a Store on the database of the configuration. It makes up to 9 connections of its
// own, with the address, user, TLS, timeouts and Apply options of the configuration. Its Params,
// character set and collation are not used, because sessions have the store's settings. Options
// may be nil.
//
// It makes one call, and takes 8 s at most, with Options.Migrate a minute more. The errors are
// those of Open.
func New(ctx context.Context, config *mysql.Config, o *Options) (*Store, error) {
	if config == nil {
		return nil, errors.New("mysqlstore: New was given no configuration")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{options: options, names: namer{prefix: options.Prefix}, config: own(config)}
	c, err := mysql.NewConnector(s.config)
	if err != nil {
		return nil, &storekit.Fault{Is: ErrURL, Said: err, Cure: "correct the configuration"}
	}
	s.front, s.back, s.polls = pool(c, frontConns), pool(c, backConns), pool(c, 1)
	s.server = &remote.Server{
		Closer: remote.NewCloser(ErrClosed), MaxElements: maxElements, MaxBytes: maxBytes, MaxWaiters: options.MaxWaiters,
		MaxRecord: options.MaxRecord, PushedTTL: options.pushedTTL, PruneEvery: options.PruneEvery, PollMin: pollMin, PollMax: pollMax,
		Busy: ErrLocked, Try: s.try, Stuck: s.stuck, Fits: s.fits, Claim: s.claim, Renew: s.renew, Settle: s.settle,
		Work: s.work, List: s.list, Sweep: func() remote.Sweep { return s.sweep(0) }, TakeSweep: s.takeSweep, KeepSweep: s.keepSweep,
	}
	s.server.Process = func() int64 {
		if s.server.Relays.Load() {
			return -1
		}
		return 1
	}
	s.core = remote.New(s.server)
	if err := s.begin(ctx); err != nil {
		_ = s.Close()
		return nil, explain(err)
	}
	remote.Start(s.core)
	return s, nil
}

// Close stops polling and pruning and closes the connections. It returns nil. Calls after
// it return ErrClosed.
func (s *Store) Close() error {
	if s.server.Close() {
		for _, db := range []*sql.DB{s.front, s.back, s.polls} {
			_ = db.Close() // which fails where the server ended a connection before
		}
	}
	return nil
}

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	err := s.core.Renew(ctx, renewals, errs)
	// The connection was cut, perhaps long ago and unnoticed. To renew twice does no harm.
	for n := 1; n < maxStale && errors.Is(err, mysql.ErrInvalidConn) && ctx.Err() == nil; n++ {
		err = s.core.Renew(ctx, renewals, errs)
	}
	return err
}

func (s *Store) script() *script { return &script{names: s.names} }

// Batching implements store.Batcher. A batch is one commit. The next batch is collected while
// that waits for the disk.
func (s *Store) Batching() store.Batching {
	return store.Batching{Size: maxElements, Parallel: 2}
}
