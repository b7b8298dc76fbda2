package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// jointTransaction is a transaction of the application that settles a key.
//
//	Begin ── Tx ──▶ open: the file is locked ── note ── COMMIT ──▶ over
//	  │               │                           └── 0 rows: lost ──▶ rolled back
//	  │               └── its context ends, Rollback ──▶ rolled back
//	  └── nobody asked for it: the store settles the key by itself
type jointTransaction struct {
	b   *transactor
	s   *Store
	ctx context.Context // that of Begin, as with an sql.Tx

	mu     sync.Mutex // guards what follows; held while it is opened and while it ends
	over   bool
	err    error // why it could not be opened
	conn   *sql.Conn
	tx     *sql.Tx
	writes bool        // it is its turn
	stop   func() bool // takes back that the end of ctx is the transaction's

	// A commit is refused while guarded, but for the one that Commit makes itself.
	guarded, own, refused atomic.Bool
}

// lockSQL takes the lock that writers need, and writes nothing. As the first
// statement of a transaction it has no snapshot that could be too old.
const lockSQL = "UPDATE @meta SET fence = fence WHERE one = 0"

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
	return ErrEnded
}

// begin locks the file. In one process one transaction at a time may ask for that, so
// that they do not take the application's connections to wait with.
func (t *jointTransaction) begin() (err error) {
	ctx, cancel := context.WithTimeout(t.ctx, t.s.opt.LockWait)
	defer cancel()
	t.s.turns.waiting.Add(1)
	select {
	case t.s.joint <- struct{}{}:
		t.s.turns.waiting.Add(-1)
	case <-ctx.Done():
		t.s.turns.waiting.Add(-1)
		return ctx.Err()
	case <-t.s.closing:
		t.s.turns.waiting.Add(-1)
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
	if t.writes = t.s.turns.enter(func() bool { return ctx.Err() != nil }); !t.writes {
		return ctx.Err()
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if t.tx, err = t.conn.BeginTx(t.ctx, nil); err == nil && t.b.lock != "" {
			if _, err = t.tx.ExecContext(ctx, t.b.lock); err != nil {
				_ = t.tx.Rollback()
			}
		}
		if err == nil || !isBusy(err) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
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
	default:
		err = t.s.checkSettlement(&x)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, err)
	}
	waits, err := t.note(ctx, &x)
	if err != nil {
		return err
	}
	t.own.Store(true)
	if err := t.tx.Commit(); err != nil {
		return t.failed(err)
	}
	t.b.committed(x.Key, waits)
	return nil
}

// note notes the settlement down, and reports whether somebody waits for the key.
func (t *jointTransaction) note(ctx context.Context, x *dibs.Settlement) (waits bool, err error) {
	if t.refused.Load() {
		return false, fmt.Errorf("%w: %w", dibs.ErrRolledBack, ErrEnded)
	}
	err = t.tx.QueryRowContext(ctx, t.b.note, t.s.noteArgs(x)...).Scan(&waits)
	switch {
	case t.refused.Load():
		// There was no transaction any more, so the note would have been one of its
		// own.
		return false, fmt.Errorf("%w: %w", dibs.ErrRolledBack, ErrEnded)
	case errors.Is(err, sql.ErrNoRows):
		return false, dibs.ErrLost
	case err != nil:
		return false, t.failed(err)
	}
	return waits, nil
}

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
	e, ok := errors.AsType[*modernc.Error](err)
	switch {
	case errors.Is(err, sql.ErrTxDone):
		err = t.ended()
	case ok && lite.Code(e.Code()&0xff) == lite.IOErr && t.own.Load():
		return &FileError{Path: t.s.path, Err: err}
	case ok:
		err = t.s.driverFault(err)
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
	return isBusy(err) && !errors.Is(err, ErrLocked)
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
	if t.writes {
		t.s.turns.leave()
	}
	<-t.s.joint
}

// isBusy reports whether the driver said that somebody else has the lock.
func isBusy(err error) bool {
	e, ok := errors.AsType[*modernc.Error](err)
	return ok && (lite.Code(e.Code()&0xff) == lite.Busy || lite.Code(e.Code()&0xff) == lite.Locked)
}

// lockFault says why the file could not be locked.
func (s *Store) lockFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, ok := errors.AsType[*FileError](err); ok {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return s.lockedFor(err)
	}
	return s.driverFault(err)
}

// driverFault is fault for what the application's driver said.
func (s *Store) driverFault(err error) error {
	e, ok := errors.AsType[*modernc.Error](err)
	if !ok {
		return fault(s.path, err)
	}
	if kind := kindOf(lite.Code(e.Code()&0xff), 0); kind != nil {
		err = fmt.Errorf("%w: %w", kind, err)
	}
	return &FileError{Path: s.path, Err: err}
}
