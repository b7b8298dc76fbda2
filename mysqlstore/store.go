package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
)

// Store is a dibs.Store on a MySQL or MariaDB database. It is safe for concurrent use.
type Store struct {
	options Options
	names   namer
	config  *mysql.Config

	// The connections are the store's own. Renewals and settlements have theirs, so
	// that they wait neither for the application nor for claims.
	front *sql.DB // claims, and what operators ask
	back  *sql.DB // renewals and settlements
	ear   *sql.DB // who polls

	packet  int // max_allowed_packet
	waiting *waiting
	clocks  clocks // that Check saw

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

// New returns a Store on the database that the configuration names. It makes
// connections of its own, up to 9, with sessions of its own settings; the
// configuration says who they are and how they are made (its address, user, TLS,
// timeouts and Apply options), and its Params, character set and collation are left
// out. Options may be nil.
//
// It asks the server a first question, and takes 8 s at most, with Options.Migrate
// a minute more; the errors are those of Open.
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
		return nil, &fault{is: ErrURL, said: err, cure: "put the configuration right"}
	}
	s.front, s.back, s.ear = pool(c, frontConns), pool(c, backConns), pool(c, 1)
	s.life, s.end = context.WithCancel(context.Background())
	s.waiting = newWaiting(s)
	if err := s.begin(ctx); err != nil {
		_ = s.Close()
		return nil, explain(err)
	}
	if options.PruneEvery > 0 {
		s.background.Go(s.prunes)
	}
	return s, nil
}

// Close stops polling and pruning and closes the connections. Calls after it return
// an error. It returns nil.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.waiting.mu.Lock() // nobody is about to begin something
	s.end()
	s.waiting.mu.Unlock()
	s.background.Wait()
	for _, db := range []*sql.DB{s.front, s.back, s.ear} {
		// What it says is that it could not take leave of a server that had ended a
		// connection before: it is closed all the same.
		_ = db.Close()
	}
	return nil
}

func (s *Store) script() *script { return &script{names: s.names} }

func (s *Store) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// Batching implements dibs.Batcher: a batch is one commit, and while it waits for
// the disk the next one is made up.
func (s *Store) Batching() dibs.Batching {
	return dibs.Batching{Size: most, Parallel: 2}
}
