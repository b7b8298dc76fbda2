package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// Transactions returns what begins transactions on the application's connections to
// the store's file, for dibs.OnceIn, OnceTx and idempotency.Options.Transactor.
// Functions that run in one find it with Tx. The database is one that OpenDB opened,
// or the application opened with the driver of modernc.org/sqlite; no other driver
// can be in one process with this one on the same file.
//
// SQLite lets one transaction at a time write to a file. So a transaction begins, by
// taking that lock, when Tx first asks for it and not before: until then nobody waits
// for it, and one that nobody asks for costs nothing. From then until its end nobody
// else writes to the file, be it this process or another: claims, renewals and the
// transactions of others wait, in the order in which they come and Options.LockWait
// at most. What takes its time belongs before Tx, and no key can be claimed after it.
// The lease is not renewed meanwhile either, so its TTL bounds the transaction; one
// that has outlasted it is rolled back.
//
// A commit hook of the application's own is taken off the connections that such
// transactions had.
func (s *Store) Transactions(db *sql.DB) dibs.Transactor { return newTransactor(s, db) }

// Tx returns the transaction in which the function that was given ctx runs, of those
// that Transactions makes. The first call begins it; ok is false when that failed
// (Begin says why), or when ctx carries none.
//
// It is committed when the function has returned, and rolled back if that returned an
// error. If the function calls its Commit, or has COMMIT executed, it is rolled back,
// and the run fails with ErrTransactionEnded; after a Rollback of its own too. Of savepoints it
// may make as many as it likes.
func Tx(ctx context.Context) (tx *sql.Tx, ok bool) {
	tx, err := Begin(ctx)
	return tx, err == nil
}

// Begin is Tx for those who want to hear why there is none: ErrLocked when others had
// the file locked for Options.LockWait, ErrOtherDB when the sql.DB is not one of the
// store's file, ErrClosed, the context's error, or what the driver said.
func Begin(ctx context.Context) (*sql.Tx, error) {
	t, ok := dibs.TransactionFrom(ctx).(*jointTransaction)
	if !ok {
		return nil, errNoTransaction
	}
	return t.open()
}

var errNoTransaction = errors.New("sqlitestore: the context carries no transaction that Store.Transactions made")

// OnceTx runs fn once under the key, in a transaction of t (see Store.Transactions):
// what fn does in it and what it returns are committed together, and whoever asks
// under the key gets that, in any process, until the retention is over. See
// dibs.OnceIn for what it returns and when fn is called again. The context that fn
// gets carries the transaction too. The file is locked while fn runs: if it has
// something slow to do first, let it call Tx in a dibs.OnceIn after that.
func OnceTx[T any](ctx context.Context, c *dibs.Client, t dibs.Transactor, key string, o *dibs.OnceOptions, fn func(context.Context, *sql.Tx) (T, error)) (T, error) {
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
	s    *Store
	db   *sql.DB
	same atomic.Bool // it is one of the store's file

	sql map[string]string // the store's statements
}

func newTransactor(s *Store, db *sql.DB) *transactor {
	return &transactor{s: s, db: db, sql: s.tables.texts()}
}

// Begin implements dibs.Transactor.
func (b *transactor) Begin(ctx context.Context) (dibs.Transaction, error) {
	if b.db == nil {
		return nil, errors.New("sqlitestore: Transactions was given no DB; make one with Store.OpenDB")
	}
	select {
	case <-b.s.closing:
		return nil, &FileError{Path: b.s.path, Err: ErrClosed}
	default:
	}
	return &jointTransaction{b: b, s: b.s, ctx: ctx}, ctx.Err()
}

// check returns an error unless the connection is one of the store's file. It looks
// once: a sql.DB does not move to another file.
func (b *transactor) check(ctx context.Context, conn *sql.Conn) error {
	if b.same.Load() {
		return nil
	}
	var file string
	err := conn.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file)
	if err != nil {
		return err
	}
	info, err := os.Stat(file) // it must not be opened: see inspectPath
	if err != nil || !os.SameFile(info, b.s.file) {
		return fmt.Errorf("%w: it is on %q", ErrOtherDB, file)
	}
	b.same.Store(true)
	return nil
}

// settle ends a lease cleanly in a transaction of the application. It does what
// transaction.settle does, but that it wakes nobody: that is for follow, nil if nobody
// waits, which runs after the commit.
func (b *transactor) settle(ctx context.Context, tx *sql.Tx, x *dibs.Settlement) (follow func(*transaction), err error) {
	var boot, f []byte
	var offset, clock, fence, number int64
	var places, memory bool
	if err := tx.QueryRowContext(ctx, b.sql["meta"]).Scan(&boot, &offset, &clock, &fence); err != nil {
		return nil, err
	}
	if string(boot) != b.s.boot {
		return nil, errOtherBoot(string(boot))
	}
	k, now := backend.AppendKey(nil, x.Key), max(b.s.clock.monotonic()+offset, clock)
	err = tx.QueryRowContext(ctx, b.sql["endLease"], k, x.Token[:], now).Scan(&f, &number, &places, &memory)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, dibs.ErrLost
	}
	if err != nil {
		return nil, err
	}
	exec := func(name string, args ...any) {
		if err == nil {
			_, err = tx.ExecContext(ctx, b.sql[name], args...)
		}
	}
	// Leases that ran out before would be abandoned, and forgotten now.
	exec("deleteRan", k, now)
	if memory {
		exec("forget", k)
		exec("deleteMemory", k)
	}
	if number != 0 {
		exec("wakeNumber", k, number)
		exec("deleteNumber", k, number)
	}
	if x.Outcome == dibs.Keep && err == nil {
		serial := int64(0)
		err = withID(now+micros(x.Retention), &serial, func(id int64) error {
			_, err := tx.ExecContext(ctx, b.sql["saveRecord"], id, k, x.Token[:], now, append([]byte{}, f...), append([]byte{}, x.Data...)) // nil would be NULL
			return err
		})
	}
	if err != nil || !places {
		return nil, err
	}
	keeps := x.Outcome == dibs.Keep
	return func(tx *transaction) {
		tx.k, tx.asker = k, dibs.Token{}
		if keeps {
			tx.wakeWaiters(1)
		}
		tx.settleDown()
	}, nil
}

// guard has hook asked about every commit of the connection; with nil nobody is.
func guard(conn *sql.Conn, hook func() int32) error {
	return conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(modernc.HookRegisterer)
		if !ok {
			return fmt.Errorf("%w: its connections are of the type %T", ErrOtherDB, driverConn)
		}
		c.RegisterCommitHook(hook)
		return nil
	})
}
