package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storekit"
)

// Transactions returns a Transactor on the application's connections to the store's file,
// for dibs.OnceIn, OnceTx and idempotency.Options.Transactor. Functions find their
// transaction with Tx. db must come from OpenDB, or use the driver modernc.org/sqlite: a
// process must not use a second driver on the same file.
//
// SQLite lets one transaction at a time write to a file. So a transaction locks the file
// when Tx is first called. Before that it blocks nothing, and without a call of Tx it
// costs nothing. From then until its end, no other transaction of any process writes to
// the file: claims, renewals and others wait in order, at most Options.LockWait. So do
// slow work before Tx. A function must not claim a key after Tx. Its lease is not renewed
// meanwhile, so the lease's TTL bounds the transaction. A transaction that outlasts its
// lease is rolled back.
//
// The connections of these transactions lose the application's commit hook.
func (s *Store) Transactions(db *sql.DB) store.Transactor { return newTransactor(s, db) }

// Tx returns the transaction of the function that got ctx. The first call begins it. ok
// is false when that failed (Begin returns the error), or when ctx has no transaction.
//
// It commits after the function returns nil, and rolls back after an error. If the
// function commits or rolls back itself, the transaction is rolled back, and the run
// fails with ErrTransactionEnded. Savepoints are allowed.
func Tx(ctx context.Context) (tx *sql.Tx, ok bool) {
	tx, err := Begin(ctx)
	return tx, err == nil
}

// Begin is Tx with an error: ErrLocked when the file was locked for Options.LockWait,
// ErrOtherDB when the sql.DB is not on the store's file, ErrClosed, the context's error,
// or the driver's.
func Begin(ctx context.Context) (*sql.Tx, error) {
	t, ok := store.TransactionFrom(ctx).(*appTransaction)
	if !ok {
		return nil, errNoTransaction
	}
	return t.open()
}

var errNoTransaction = errors.New("sqlitestore: the context has no transaction of Store.Transactions")

// OnceTx runs fn once under the key, in a transaction of t (see Store.Transactions). Its
// writes and its result commit together, and later calls under the key get that result,
// in any process, until the retention ends. See dibs.OnceIn for errors, and for when fn
// is called again. fn's context has the transaction, too. The file is locked while fn
// runs: for slow work before the transaction use dibs.OnceIn and Tx.
func OnceTx[T any](ctx context.Context, c *dibs.Client, t store.Transactor, key string, o *dibs.OnceOptions, fn func(context.Context, *sql.Tx) (T, error)) (T, error) {
	return dibs.OnceIn(ctx, c, t, key, o, func(ctx context.Context) (result T, err error) {
		tx, err := Begin(ctx)
		if err != nil {
			return result, err
		}
		return fn(ctx, tx)
	})
}

// transactor begins transactions of a sql.DB.
type transactor struct {
	s   *Store
	db  *sql.DB
	sql map[string]string // the store's statements
}

func newTransactor(s *Store, db *sql.DB) *transactor {
	return &transactor{s: s, db: db, sql: s.tables.texts()}
}

// Begin implements store.Transactor.
func (b *transactor) Begin(ctx context.Context) (store.Transaction, error) {
	if b.db == nil {
		return nil, errors.New("sqlitestore: the sql.DB given to Transactions is nil; open one with Store.OpenDB")
	}
	select {
	case <-b.s.closing:
		return nil, &FileError{Path: b.s.path, Err: ErrClosed}
	default:
	}
	return &appTransaction{b: b, s: b.s, ctx: ctx}, ctx.Err()
}

// check returns an error unless the connection is on the store's file, and on its log. A
// pool opens connections at any time, so each transaction checks its own.
func (b *transactor) check(ctx context.Context, conn *sql.Conn) error {
	if err := b.s.names.check(); err != nil {
		return err
	}
	var file string
	err := conn.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file)
	if err != nil {
		return err
	}
	for i, suffix := range suffixes {
		// The files are not opened: closing them would drop this process's locks.
		info, err := os.Stat(file + suffix)
		if err != nil || !os.SameFile(info, b.s.names.files[i]) {
			return fmt.Errorf("%w: it is on %q", ErrOtherDB, file)
		}
	}
	return nil
}

// settle ends a lease cleanly in the application's transaction. A key that has more than this
// lease gets a note instead, which the next transaction of the store carries out, and which
// follow does at once. follow is nil without a note.
func (b *transactor) settle(ctx context.Context, tx *sql.Tx, x *store.Settlement) (follow func(*transaction), err error) {
	var boot, f []byte
	var offset, clock, fence int64
	if err := tx.QueryRowContext(ctx, b.sql["meta"]).Scan(&boot, &offset, &clock, &fence); err != nil {
		return nil, err
	}
	if string(boot) != b.s.boot {
		return nil, errOtherBoot(string(boot))
	}
	k, now := storekit.AppendKey(nil, x.Key), max(b.s.clock.monotonic()+offset, clock)
	err = tx.QueryRowContext(ctx, b.sql["endPlain"], k, x.Token[:], now).Scan(&f)
	if errors.Is(err, sql.ErrNoRows) {
		if err = tx.QueryRowContext(ctx, b.sql["note"], k, x.Token[:], now).Scan(&f); errors.Is(err, sql.ErrNoRows) {
			return nil, store.ErrLost
		}
		if err == nil {
			// They would become the abandoned lease, which this settlement forgets.
			_, err = tx.ExecContext(ctx, b.sql["deleteRan"], k, now)
		}
		follow = func(tx *transaction) {
			tx.k, tx.asker = k, store.Token{}
			tx.decide(false, (*engine.State).Advance)
		}
	}
	if err == nil && x.Outcome == store.Keep {
		r, serial := recordOf(x, now), int64(0)
		err = withID(&r, &serial, func(id int64) error {
			_, err := tx.ExecContext(ctx, b.sql["saveRecord"], id, k, x.Token[:], now, append([]byte{}, f...), append([]byte{}, x.Data...)) // nil would be NULL
			return err
		})
	}
	return follow, err
}

// setHook sets the commit hook of the connection; nil removes it.
func setHook(conn *sql.Conn, hook func() int32) error {
	return conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(modernc.HookRegisterer)
		if !ok {
			return fmt.Errorf("%w: its connections are of the type %T", ErrOtherDB, driverConn)
		}
		c.RegisterCommitHook(hook)
		return nil
	})
}
