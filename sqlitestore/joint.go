package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// jointTransaction is a transaction of the application that settles a key.
//
//	Begin ── Tx ──▶ open: the file is locked ── settled ── COMMIT ──▶ over
//	  │               │                           └── lost ──▶ rolled back
//	  │               └── its context ends, Rollback ──▶ rolled back
//	  └── nobody asked for it: the store settles the key by itself
type jointTransaction struct {
	b   *transactor
	s   *Store
	ctx context.Context // that of Begin, as with an sql.Tx

	mu    sync.Mutex // guards what follows; held while it is opened and while it ends
	over  bool
	err   error // why it could not be opened
	conn  *sql.Conn
	tx    *sql.Tx
	joint *joint      // its turn; nil until it has asked for it
	stop  func() bool // takes back that the end of ctx is the transaction's

	// A commit is refused while guarded, but for the one that Commit makes itself.
	guarded, own, refused atomic.Bool
}

// joint is a turn of a transaction of the application's to write, given by the writing
// goroutine.
type joint struct {
	mine chan struct{} // closed when it has come
	over chan struct{} // closed when nobody needs it any more
}

// join asks for a turn and waits for it.
func (s *Store) join(ctx context.Context) (*joint, error) {
	j := &joint{make(chan struct{}), make(chan struct{})}
	asks := s.joints
	for {
		select {
		case asks <- j:
			asks = nil
			s.kick()
		case <-j.mine:
			return j, nil
		case <-ctx.Done():
			close(j.over)
			return nil, ctx.Err()
		case <-s.closing:
			close(j.over)
			return nil, &FileError{Path: s.path, Err: ErrClosed}
		}
	}
}

// open begins the transaction when it is first asked for.
func (t *jointTransaction) open() (*sql.Tx, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.tx != nil || t.err != nil:
		return t.tx, t.err
	case t.over:
		return nil, t.ended()
	}
	if err := t.begin(); err != nil {
		t.tx, t.err = nil, t.s.lockFault(t.ctx, err)
		return nil, t.err
	}
	// Whoever runs in it may not notice that its context has ended, and the file
	// must not stay locked for that long.
	t.stop = context.AfterFunc(t.ctx, t.Rollback)
	return t.tx, nil
}

// ended says why the transaction is over although nobody has called Commit or
// Rollback.
func (t *jointTransaction) ended() error {
	if err := context.Cause(t.ctx); err != nil {
		return err
	}
	return ErrTransactionEnded
}

// begin locks the file. In one process two transactions at a time may ask for that, so
// that they do not take the application's connections to wait with; and each has its
// connection before its turn, so that nobody waits for the application while it writes.
func (t *jointTransaction) begin() (err error) {
	ctx, cancel := context.WithTimeout(t.ctx, t.s.opt.LockWait)
	defer cancel()
	select {
	case t.s.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-t.s.closing:
		return &FileError{Path: t.s.path, Err: ErrClosed}
	}
	defer func() {
		if err != nil {
			t.leave()
		}
	}()
	if t.conn, err = t.b.db.Conn(ctx); err != nil {
		return err
	}
	// The guard comes first: it tells the driver.
	t.guarded.Store(true)
	if err := guard(t.conn, t.mayCommit); err != nil {
		return err
	}
	if err := t.b.check(ctx, t.conn); err != nil {
		return err
	}
	if t.joint, err = t.s.join(ctx); err != nil {
		return err
	}
	if t.tx, err = t.conn.BeginTx(t.ctx, nil); err != nil {
		return err
	}
	if _, err = t.tx.ExecContext(ctx, t.b.sql["lock"]); err != nil {
		_ = t.tx.Rollback()
	}
	return err
}

// mayCommit is asked about each commit of the connection. SQLite rolls back what it
// refuses.
func (t *jointTransaction) mayCommit() int32 {
	if !t.guarded.Load() || t.own.Load() {
		return 0
	}
	t.refused.Store(true)
	return 1
}

// Commit implements dibs.Transaction.
func (t *jointTransaction) Commit(ctx context.Context, x dibs.Settlement) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, t.ended())
	}
	defer t.end()
	err := t.err
	switch {
	case err != nil:
	case t.tx == nil:
		return t.settle(ctx, x)
	case x.Outcome != dibs.Release && x.Outcome != dibs.Keep:
		err = errOutcome
	default:
		err = t.s.checkSettlement(&x)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, err)
	}
	var follow func(*transaction)
	if !t.refused.Load() {
		follow, err = t.b.settle(ctx, t.tx, &x)
	}
	switch {
	case t.refused.Load():
		// There is no transaction any more; the settlement would be one of its own.
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, ErrTransactionEnded)
	case errors.Is(err, dibs.ErrLost):
		return err
	case err != nil:
		return t.failed(err)
	}
	t.own.Store(true)
	if err := t.tx.Commit(); err != nil {
		return t.failed(err)
	}
	if follow != nil {
		// Nobody waits for it, and who is not woken asks by itself.
		t.s.enqueue(&call{since: time.Now(), left: true, work: follow})
	}
	return nil
}

var errOutcome = errors.New("sqlitestore: a transaction ends a lease by Release or Keep")

// settle settles the key for a transaction that nobody asked for.
func (t *jointTransaction) settle(ctx context.Context, x dibs.Settlement) error {
	errs := make([]error, 1)
	if err := t.s.Settle(ctx, []dibs.Settlement{x}, errs); err != nil {
		return err
	}
	if err := errs[0]; err != nil && !errors.Is(err, dibs.ErrLost) {
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, err)
	}
	return errs[0]
}

// failed says what became of a transaction that could not be committed. SQLite rolls
// back whatever it reports an error for; but what a disk has failed to write may be
// there after all, when somebody recovers the log.
func (t *jointTransaction) failed(err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone):
		err = t.ended()
	case isCode(err, lite.IOErr) && t.own.Load():
		return &FileError{Path: t.s.path, Err: err}
	default:
		err = fault(t.s.path, err)
	}
	return fmt.Errorf("%w: %w", dibs.ErrRolledBack, err)
}

// Rollback implements dibs.Transaction.
func (t *jointTransaction) Rollback() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
}

// Conflicted implements dibs.Transaction. A transaction that is open has the file to
// itself and can be in conflict with nobody; what the application met may be another
// one of its own. Who waited for the lock in vain has waited enough.
func (t *jointTransaction) Conflicted(err error) bool {
	return isCode(err, lite.Busy, lite.Locked) && !errors.Is(err, ErrLocked)
}

// end rolls back what is not committed, and unlocks the file. The caller holds mu.
func (t *jointTransaction) end() {
	if t.over {
		return
	}
	t.over = true
	if t.tx == nil {
		return
	}
	t.stop()
	_ = t.tx.Rollback() // it does nothing after a commit
	t.leave()
}

// leave gives back what begin took. The transaction is over, or never began.
func (t *jointTransaction) leave() {
	if t.conn != nil {
		_ = guard(t.conn, nil) // a connection that is broken has no guard either
		t.guarded.Store(false)
		_ = t.conn.Close()
	}
	if t.joint != nil {
		close(t.joint.over)
	}
	<-t.s.slots
}

// lockFault says why the file could not be locked.
func (s *Store) lockFault(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return s.lockedFor(err)
	}
	return fault(s.path, err)
}
