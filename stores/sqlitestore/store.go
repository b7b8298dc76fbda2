package sqlitestore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// Store is one open file. Its methods are safe for concurrent use.
//
// Claim, Renew and Settle return a *FileError or the context's error. Nothing was done
// after ErrLocked, ErrDiskFull, ErrClosed, or a context that ended before the file was
// locked. After any other error the outcome is unknown.
type Store struct {
	path  string // as given to Open, for messages
	names identity
	opt   Options
	clock clock

	tables tables
	boot   string

	// These belong to the writing goroutine.
	conn       *lite.Conn
	st         statements
	tx         transaction
	writeQueue writeQueue

	mu      sync.Mutex // guards the fields below
	queue   []*call
	blocked bool // another process has the file locked now
	closed  bool
	applied chan struct{} // closed when the current calls have been applied

	turns   chan *turn    // application transactions that wait for their turn
	slots   chan struct{} // an element for each open or waiting one
	calls   chan struct{} // has an element when there may be calls or turns
	closing chan struct{}
	ended   chan struct{} // closed when the writing goroutine has ended

	waiting    waiting
	background sync.WaitGroup
}

// Interfaces of a Store.
var (
	_ store.Store     = (*Store)(nil)
	_ store.Notifier  = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Pruner    = (*Store)(nil)
	_ store.Batcher   = (*Store)(nil)
)

func newStore(path string, names identity, opt Options, clock clock, boot string, conn *lite.Conn) *Store {
	s := &Store{
		path:    path,
		names:   names,
		opt:     opt,
		tables:  ownTables,
		clock:   clock,
		boot:    boot,
		conn:    conn,
		turns:   make(chan *turn, 2),
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

// Close closes the Store. Calls that have not begun fail with ErrClosed; others are
// finished first. Leases stay held until they run out or are settled through another
// Store. A second Close does nothing.
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
	return fault(s.path, errors.Join(s.conn.Close(), s.writeQueue.close()))
}

// Batching lets clients call the Store at once and from many goroutines, because the
// Store itself puts concurrent calls of all verbs into one transaction.
func (s *Store) Batching() store.Batching { return store.Batching{Direct: true} }

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	c := &call{claims: claims, answers: make([]store.Answer, len(claims))}
	return s.do(ctx, c, func() { copy(answers, c.answers) })
}

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	c := &call{renewals: renewals, errs: make([]error, len(renewals))}
	return s.do(ctx, c, func() { copy(errs, c.errs) })
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	c := &call{settlements: settlements, errs: make([]error, len(settlements))}
	return s.do(ctx, c, func() { copy(errs, c.errs) })
}

// work runs f in a transaction of the writing goroutine, together with other calls. After
// an error f may run again.
func (s *Store) work(ctx context.Context, f func(*transaction)) error {
	return s.do(ctx, &call{work: f}, func() {})
}

// do gives a call to the writing goroutine and waits for it. finish copies the answers
// out.
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
