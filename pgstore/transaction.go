package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
)

const (
	// rollbackLimit bounds a rollback, after which the connection is given up.
	rollbackLimit = 4 * time.Second
	// rollbackGrace is how long after the end of its context a transaction may still
	// be ended by whoever runs it. Then its connection is closed.
	rollbackGrace = time.Second
)

// Transactions returns what begins transactions by connections of the application's
// pool, for dibs.OnceIn, OnceTx and idempotency.Options.Transactor. Functions that
// run in one find it with Tx. The pool has to be one of the store's database; its
// user needs no rights on the store's tables, but EXECUTE on one function, see the
// README. It may go through a transaction pooler. Options may be nil.
//
// The key is settled together with COMMIT, in one message, so that a transaction
// costs no more round trips than without dibs, and nobody waits for a lock of ours
// while this process is slow. At the isolation levels REPEATABLE READ and
// SERIALIZABLE, a lease that is renewed while the transaction is open, which is after
// a third of its TTL, makes it fail with a conflict: let the TTL be well above three
// times what a run takes.
//
// Begin returns an ErrOtherDatabase, once, when the pool is not one of the store's
// database, ErrReadOnly when the options ask for read-only transactions, and what
// the pool returns.
func (s *Store) Transactions(pool *pgxpool.Pool, o *pgx.TxOptions) dibs.Transactor {
	t := &transactor{s: s, pool: pool}
	if o != nil {
		t.options = *o
	}
	return t
}

// Tx returns the transaction in which the function that was given ctx runs, of those
// that Transactions makes. Its Begin makes a savepoint, so that a statement may fail
// and the run go on. Its Commit and Rollback do nothing and return ErrOwnTransaction:
// it is committed when the function has returned, and rolled back if that returned
// an error.
func Tx(ctx context.Context) (pgx.Tx, bool) {
	t, ok := dibs.TransactionFrom(ctx).(*transaction)
	if !ok {
		return nil, false
	}
	return &guardedTx{Tx: t.tx, t: t}, true
}

// transactor begins transactions of a pool.
type transactor struct {
	s       *Store
	pool    *pgxpool.Pool
	options pgx.TxOptions
	same    sameness
	marks   atomic.Bool // each transaction is marked by a statement
}

// Begin implements dibs.Transactor.
func (b *transactor) Begin(ctx context.Context) (dibs.Transaction, error) {
	switch {
	case b.pool == nil:
		return nil, errors.New("pgstore: Transactions was given no pool")
	case b.options.AccessMode == pgx.ReadOnly:
		return nil, fmt.Errorf("%w: TxOptions.AccessMode is ReadOnly, and what is done once is written down", ErrReadOnly)
	}
	if err := b.s.usable(ctx); err != nil {
		return nil, err
	}
	err := b.same.check(ctx, b.s, func(ctx context.Context, sql string) (yes bool, err error) {
		err = b.pool.QueryRow(ctx, sql, pgx.QueryExecModeSimpleProtocol).Scan(&yes)
		return yes, err
	})
	if err != nil {
		return nil, err
	}
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return nil, explain(err)
	}
	t := &transaction{s: b.s, by: b, conn: conn, commit: "commit", prepared: b.prepare(ctx, conn.Conn())}
	if b.options.CommitQuery != "" {
		t.commit = b.options.CommitQuery
	}
	if t.tx, err = conn.BeginTx(ctx, t.marked(b.options)); err != nil {
		conn.Release()
		return nil, explain(err)
	}
	t.forget = context.AfterFunc(ctx, t.expire)
	return t, nil
}

// prepare has the server remember the settlement on a connection, and reports whether
// it does, where the application prepares its own statements.
func (b *transactor) prepare(ctx context.Context, conn *pgx.Conn) bool {
	if conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return false
	}
	settle, known := b.s.sql.settleIn, conn.PgConn().CustomData()
	if known[settle.name] == nil {
		_, err := conn.PgConn().Prepare(ctx, settle.name, settle.sql, nil)
		known[settle.name] = err == nil
	}
	return known[settle.name] == true
}

// marked returns the options with which the transaction begins so that it can be told
// from one that a run begins in its place.
func (t *transaction) marked(o pgx.TxOptions) pgx.TxOptions {
	o.DeferrableMode = pgx.Deferrable // means nothing else, as it is not read-only
	t.mark = o.BeginQuery != "" || t.by.marks.Load()
	if !t.mark {
		return o
	}
	if o.BeginQuery == "" {
		o.BeginQuery = "begin"
		if o.IsoLevel != "" {
			o.BeginQuery += " isolation level " + string(o.IsoLevel)
		}
	}
	o.BeginQuery += "; " + markSQL
	return o
}

// watch marks the transaction by a statement: what the run is about to do could begin
// another one that looks the same.
func (t *transaction) watch(ctx context.Context) {
	if !t.mark {
		_, t.doubt = t.tx.Exec(ctx, markSQL, pgx.QueryExecModeSimpleProtocol)
		t.mark = t.doubt == nil
	}
}

// transaction is one of a pgx pool's.
type transaction struct {
	s      *Store
	by     *transactor
	conn   *pgxpool.Conn
	tx     pgx.Tx
	mark   bool   // it is marked by a statement
	doubt  error  // it should have been
	commit string // the statement that commits

	prepared bool // the settlement is
	forget   func() bool

	over     atomic.Bool // it is used no more
	conflict atomic.Bool // a statement fell victim to another transaction

	mu       sync.Mutex
	released bool        // the connection is the pool's again
	grace    *time.Timer // since ctx ended
	cut      bool        // and it is over
}

// expire gives whoever runs it a moment to roll back, and then has the server do so.
// Statements that are under way end by their own contexts; one may also be missing,
// and then nobody but us ends what the transaction keeps locked.
func (t *transaction) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.released {
		return
	}
	t.grace = time.AfterFunc(rollbackGrace, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.released && !t.over.Load() {
			t.cut = true
			_ = t.conn.Conn().PgConn().Conn().Close()
		}
	})
}

func (t *transaction) wasCut() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cut
}

// Commit implements dibs.Transaction. What it settles with and COMMIT are one
// message, of which the server leaves out the latter when the former fails.
func (t *transaction) Commit(ctx context.Context, x dibs.Settlement) error {
	if t.over.Swap(true) {
		return fmt.Errorf("%w: it is over", dibs.ErrRolledBack)
	}
	defer t.release()
	if t.doubt != nil {
		return fmt.Errorf("%w: it could not be marked: %w", dibs.ErrRolledBack, t.doubt)
	}
	with, err := t.s.settleIn(&x, t.mark)
	if err != nil {
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, err)
	}
	pg := t.conn.Conn().PgConn()
	switch {
	case t.wasCut():
		return fmt.Errorf("%w: its context has ended", dibs.ErrRolledBack)
	case pg.IsClosed():
		return fmt.Errorf("%w: %w: the connection was lost", dibs.ErrRolledBack, ErrUnreachable)
	case pg.IsBusy():
		return fmt.Errorf("%w: the run has left rows, or the results of a batch, open: close them", dibs.ErrRolledBack)
	case pg.TxStatus() == 'E':
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, ErrAborted)
	case pg.TxStatus() != 'T':
		return ErrTransactionEnded
	}
	var batch pgconn.Batch
	binary, settle := []int16{1}, t.s.sql.settleIn
	if t.prepared {
		batch.ExecPrepared(settle.name, values(with...), binary, binary)
	} else {
		batch.ExecParams(settle.sql, values(with...), nil, binary, binary)
	}
	batch.ExecParams(t.commit, nil, nil, nil, nil)
	results := pg.ExecBatch(ctx, &batch)
	var later bool
	var tag pgconn.CommandTag
	for results.NextResult() {
		result := results.ResultReader()
		for result.NextRow() {
			(&reading{columns: result.Values()}).scan(&later)
		}
		if ended, err := result.Close(); err == nil {
			tag = ended // the last one is that of COMMIT
		}
	}
	switch err := results.Close(); {
	case err == nil && tag.String() == "COMMIT":
		if later {
			t.s.catchUp(ctx, x.Key)
		}
		return nil
	case err == nil && tag.String() == "ROLLBACK":
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, ErrAborted)
	case err == nil:
		return fmt.Errorf("pgstore: the server answered COMMIT with %q", tag)
	default:
		// The server answers errors of the two to the end. Where it did not, nobody knows
		// how far it came, and the driver's word for whether it sent anything is about
		// the last thing it tried.
		if t.prepared && sqlState(err) == stateForgotten {
			pg.CustomData()[settle.name] = false
			t.conflict.Store(true) // so that it is made again, without
		}
		if sqlState(err) == stateAlike {
			t.by.marks.Store(true)
			t.conflict.Store(true) // so that it is tried again
		}
		return settleFailed(err, !pg.IsClosed() && pg.TxStatus() != 'T')
	}
}

// Rollback implements dibs.Transaction.
func (t *transaction) Rollback() {
	if !t.over.Swap(true) {
		t.release()
	}
}

// release gives the connection back, without a transaction on it.
func (t *transaction) release() {
	t.forget()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released = true
	if t.grace != nil {
		t.grace.Stop()
	}
	if pg := t.conn.Conn().PgConn(); !pg.IsClosed() && pg.TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackLimit)
		defer cancel()
		_, _ = t.conn.Exec(ctx, "rollback") // the pool closes a connection on which that failed
	}
	t.conn.Release()
}

// Conflicted implements dibs.Transaction.
func (t *transaction) Conflicted(err error) bool { return t.conflict.Load() || conflicts(err) }

// note remembers of an error that it is a conflict, and returns it.
func (t *transaction) note(err error) error {
	if conflicts(err) {
		t.conflict.Store(true)
	}
	return err
}
