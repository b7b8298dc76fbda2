package sqlitestore

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// Store is one open file. All its methods may be called concurrently.
//
// An error that Claim, Renew or Settle returns is a *FileError or that of the
// context. ErrLocked, ErrDiskFull, ErrClosed and a context's end before the file
// could be locked mean that nothing was done; after any other error the outcome
// is unknown, as the contract has it.
type Store struct {
	path  string // as it was given, for messages
	full  string // absolute
	opt   Options
	clock clock

	tables tables
	boot   string
	file   os.FileInfo // as it was opened

	// These belong to the writing goroutine.
	conn      *lite.Conn
	st        statements
	tx        transaction
	turnstile turnstile

	mu      sync.Mutex // guards what follows
	queue   []*call
	blocked bool // the file is locked by others right now
	closed  bool
	applied chan struct{} // closed when the calls under way have been read

	joints  chan *joint   // the application's transactions that wait for their turn
	slots   chan struct{} // has an element for each of those that is open or asks
	calls   chan struct{} // holds one element when there may be calls or joints
	closing chan struct{}
	ended   chan struct{} // closed when the writing goroutine is gone

	waiting    waiting
	background sync.WaitGroup
}

// What a Store is.
var (
	_ dibs.Store     = (*Store)(nil)
	_ dibs.Notifier  = (*Store)(nil)
	_ dibs.Inspector = (*Store)(nil)
	_ dibs.Pruner    = (*Store)(nil)
	_ dibs.Batcher   = (*Store)(nil)
)

func newStore(path string, opt Options, clock clock, boot string, conn *lite.Conn) *Store {
	s := &Store{
		path:    path, // for messages, until Open knows how it was given
		full:    path,
		opt:     opt,
		tables:  ownTables,
		clock:   clock,
		boot:    boot,
		conn:    conn,
		joints:  make(chan *joint, 2),
		slots:   make(chan struct{}, 2),
		calls:   make(chan struct{}, 1),
		closing: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	if opt.Shared {
		s.tables = sharedTables
	}
	s.waiting.init(s)
	return s
}

// Close ends the Store. Calls that have not begun fail with ErrClosed, those
// under way are finished first. Leases that were held stay held until they run
// out or are settled through another Store. Closing again does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		<-s.ended
		return nil
	}
	close(s.closing)
	<-s.ended
	s.background.Wait()
	return fault(s.path, errors.Join(s.conn.Close(), s.turnstile.close()))
}

// Batching says that calls are best made at once and from many goroutines: the
// Store itself puts those that come together into one transaction, whatever
// their verbs.
func (s *Store) Batching() dibs.Batching { return dibs.Batching{Direct: true} }

// Claim implements dibs.Store.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	c := &call{claims: claims, answers: make([]dibs.Answer, len(claims))}
	return s.do(ctx, c, func() { copy(answers, c.answers) })
}

// Renew implements dibs.Store.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	c := &call{renewals: renewals, errs: make([]error, len(renewals))}
	return s.do(ctx, c, func() { copy(errs, c.errs) })
}

// Settle implements dibs.Store.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	c := &call{settlements: settlements, errs: make([]error, len(settlements))}
	return s.do(ctx, c, func() { copy(errs, c.errs) })
}

// work runs f in a transaction of the writing goroutine, which it shares with
// the calls that are made meanwhile. After an error f's transaction is undone,
// and f may run again.
func (s *Store) work(ctx context.Context, f func(*transaction)) error {
	return s.do(ctx, &call{work: f}, func() {})
}

// do has the writing goroutine run a call and waits for it. finish copies the
// answers out.
func (s *Store) do(ctx context.Context, c *call, finish func()) error {
	if err := ctx.Err(); err != nil || c.elements() == 0 {
		return err
	}
	c.since, c.done = time.Now(), make(chan struct{}, 1)
	if !s.enqueue(c) {
		return &FileError{Path: s.path, Err: ErrClosed}
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if err := s.leave(ctx, c); err != nil {
			return err
		}
	}
	if c.err == nil {
		finish()
	}
	return c.err
}
