package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// appTransaction is a transaction of the application that settles a key.
//
//	Begin ── Tx ──▶ open: the file is locked ── settled ── COMMIT ──▶ over
//	  │               │                           └── lost ──▶ rolled back
//	  │               └── its context ends, Rollback ──▶ rolled back
//	  └── Tx was never called: the store settles the key itself
type appTransaction struct {
	b   *transactor
	s   *Store
	ctx context.Context // Begin's, as in a sql.Tx

	mu   sync.Mutex // guards the fields below; held while the transaction begins and ends
	over bool
	err  error // why it could not begin
	conn *sql.Conn
	tx   *sql.Tx
	turn *turn       // its turn; nil until it has asked for it
	stop func() bool // stops the rollback at the end of ctx

	// While the hook is set, only Commit's own commit is allowed.
	hooked, own, refused atomic.Bool
}

// turn is an application transaction's turn to write. The writing goroutine grants it.
type turn struct {
	granted chan struct{} // closed when the turn comes
	done    chan struct{} // closed when the transaction is over
}

// awaitTurn asks for a turn and waits for it.
func (s *Store) awaitTurn(ctx context.Context) (*turn, error) {
	j := &turn{make(chan struct{}), make(chan struct{})}
	asks := s.turns
	for {
		select {
		case asks <- j:
			asks = nil
			s.kick()
		case <-j.granted:
			return j, nil
		case <-ctx.Done():
			close(j.done)
			return nil, ctx.Err()
		case <-s.closing:
			close(j.done)
			return nil, &FileError{Path: s.path, Err: ErrClosed}
		}
	}
}

// open begins the transaction when Tx is first called.
func (t *appTransaction) open() (*sql.Tx, error) {
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
	// The function may not notice that its context has ended, and the file must not
	// stay locked.
	t.stop = context.AfterFunc(t.ctx, t.Rollback)
	return t.tx, nil
}

// ended says why the transaction is over without a call of Commit or Rollback.
func (t *appTransaction) ended() error {
	if err := context.Cause(t.ctx); err != nil {
		return err
	}
	return ErrTransactionEnded
}

// begin locks the file. In one process at most two transactions do this at a time, so
// that waiting does not use up the application's connections. Each gets its connection
// before its turn, so that writing never waits for the application's pool.
func (t *appTransaction) begin() (err error) {
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
	// The hook comes first, because it checks the driver.
	t.hooked.Store(true)
	if err := setHook(t.conn, t.mayCommit); err != nil {
		return err
	}
	if err := t.b.check(ctx, t.conn); err != nil {
		return err
	}
	if t.turn, err = t.s.awaitTurn(ctx); err != nil {
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

// mayCommit is the commit hook. SQLite rolls back a commit that it refuses.
func (t *appTransaction) mayCommit() int32 {
	if !t.hooked.Load() || t.own.Load() {
		return 0
	}
	t.refused.Store(true)
	return 1
}

// Commit implements store.Transaction.
func (t *appTransaction) Commit(ctx context.Context, x store.Settlement) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return fmt.Errorf("%w: %w", store.ErrRolledBack, t.ended())
	}
	defer t.end()
	err := t.err
	switch {
	case err != nil:
	case t.tx == nil:
		return t.settle(ctx, x)
	case x.Outcome != store.Release && x.Outcome != store.Keep:
		err = errOutcome
	default:
		err = t.s.checkSettlement(&x)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrRolledBack, err)
	}
	var follow func(*transaction)
	if !t.refused.Load() {
		follow, err = t.b.settle(ctx, t.tx, &x)
	}
	switch {
	case t.refused.Load():
		// The transaction is over, so the settlement would be a transaction of its own.
		return fmt.Errorf("%w: %w", store.ErrRolledBack, ErrTransactionEnded)
	case errors.Is(err, store.ErrLost):
		return err
	case err != nil:
		return t.failed(err)
	}
	t.own.Store(true)
	if err := t.tx.Commit(); err != nil {
		return t.failed(err)
	}
	if follow != nil {
		// No caller waits for it. A waiter that is not woken asks by itself.
		t.s.enqueue(&call{since: time.Now(), left: true, work: follow})
	}
	return nil
}

var errOutcome = errors.New("sqlitestore: a transaction can settle a lease with Release or Keep only")

// settle settles the key when Tx was never called.
func (t *appTransaction) settle(ctx context.Context, x store.Settlement) error {
	errs := make([]error, 1)
	if err := t.s.Settle(ctx, []store.Settlement{x}, errs); err != nil {
		return err
	}
	if err := errs[0]; err != nil && !errors.Is(err, store.ErrLost) {
		return fmt.Errorf("%w: %w", store.ErrRolledBack, err)
	}
	return errs[0]
}

// failed is the error of a failed commit. SQLite rolls back after an error. But a write
// that the disk reported as failed may exist after a recovery of the log.
func (t *appTransaction) failed(err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone):
		err = t.ended()
	case isCode(err, lite.IOErr) && t.own.Load():
		return &FileError{Path: t.s.path, Err: err}
	default:
		err = fault(t.s.path, err)
	}
	return fmt.Errorf("%w: %w", store.ErrRolledBack, err)
}

// Rollback implements store.Transaction.
func (t *appTransaction) Rollback() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
}

// Conflicted implements store.Transaction. An open transaction has the file to itself and
// cannot conflict. The application's error may come from another transaction. After
// ErrLocked the caller has waited long enough.
func (t *appTransaction) Conflicted(err error) bool {
	return isCode(err, lite.Busy, lite.Locked) && !errors.Is(err, ErrLocked)
}

// end rolls back an uncommitted transaction and unlocks the file. The caller holds mu.
func (t *appTransaction) end() {
	if t.over {
		return
	}
	t.over = true
	if t.tx == nil {
		return
	}
	t.stop()
	_ = t.tx.Rollback() // no effect after a commit
	t.leave()
}

// leave releases what begin took.
func (t *appTransaction) leave() {
	if t.conn != nil {
		_ = setHook(t.conn, nil) // a connection that is broken has no hook either
		t.hooked.Store(false)
		_ = t.conn.Close()
	}
	if t.turn != nil {
		close(t.turn.done)
	}
	<-t.s.slots
}

// lockFault is the error of a lock that was not taken.
func (s *Store) lockFault(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return s.lockedFor(err)
	}
	return fault(s.path, err)
}
