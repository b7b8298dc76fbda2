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

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
)

const (
	// rollbackLimit bounds a rollback. Then the connection is closed.
	rollbackLimit = 4 * time.Second
	// rollbackGrace is how long a run has to roll back after its context has ended. Then the
	// connection is closed.
	rollbackGrace = time.Second
)

// Transactions begins transactions on connections of the application's pool, for dibs.OnceIn,
// OnceTx and idempotency.Options.Transactor. The function that runs in a transaction gets it with
// Tx. The pool has to be in the store's database. Its user needs no rights on the store's tables,
// but EXECUTE on one function; see the README. A transaction pooler may be in between. Options may
// be nil.
//
// The key is settled together with COMMIT, in one message. So a transaction takes no more round
// trips than without dibs, and other calls do not wait for its lock while this process is slow. At
// REPEATABLE READ and SERIALIZABLE, a renewal of the lease conflicts with the transaction. Leases
// are renewed after a third of their TTL, so let the TTL be well above three times the time of a
// run.
//
// Begin returns ErrOtherDatabase if the pool is not in the store's database, ErrReadOnly if the
// options ask for read-only transactions, and the errors of the pool.
func (s *Store) Transactions(pool *pgxpool.Pool, o *pgx.TxOptions) store.Transactor {
	t := &transactor{s: s, pool: pool}
	if o != nil {
		t.options = *o
	}
	return t
}

// Tx returns the transaction that a function with this context runs in, if Transactions began it.
// Its Begin makes a savepoint, for statements that may fail. Its Commit and Rollback do nothing
// and return ErrOwnTransaction: dibs commits it when the function has returned, and rolls it back
// if that returned an error.
func Tx(ctx context.Context) (pgx.Tx, bool) {
	t, ok := store.TransactionFrom(ctx).(*transaction)
	if !ok {
		return nil, false
	}
	return &runTx{Tx: t.tx, t: t}, true
}

// transactor begins transactions of a pool.
type transactor struct {
	s       *Store
	pool    *pgxpool.Pool
	options pgx.TxOptions
	same    sameness
	marks   atomic.Bool // each transaction is marked by a statement
}

// Begin implements store.Transactor.
func (b *transactor) Begin(ctx context.Context) (store.Transaction, error) {
	switch {
	case b.pool == nil:
		return nil, errors.New("pgstore: Transactions was given no pool")
	case b.options.AccessMode == pgx.ReadOnly:
		return nil, fmt.Errorf("%w: TxOptions.AccessMode is ReadOnly, but the answer is written", ErrReadOnly)
	}
	if err := b.s.server.Usable(ctx); err != nil {
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

// prepare prepares the settlement on a connection, if the application prepares its statements,
// and reports whether it is prepared.
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

// marked returns options that make the transaction differ from a transaction that the run begins
// in its place.
func (t *transaction) marked(o pgx.TxOptions) pgx.TxOptions {
	o.DeferrableMode = pgx.Deferrable // has no other effect, because it is not read-only
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

// watch marks the transaction by a statement, because the run may be about to begin another
// transaction that looks the same.
func (t *transaction) watch(ctx context.Context) {
	if !t.mark {
		_, t.doubt = t.tx.Exec(ctx, markSQL, pgx.QueryExecModeSimpleProtocol)
		t.mark = t.doubt == nil
	}
}

// transaction is a transaction of a pgx pool.
type transaction struct {
	s      *Store
	by     *transactor
	conn   *pgxpool.Conn
	tx     pgx.Tx
	mark   bool   // it is marked by a statement
	doubt  error  // why it could not be marked
	commit string // the statement that commits

	prepared bool // the settlement is prepared
	forget   func() bool

	over     atomic.Bool // the run is over
	conflict atomic.Bool // a statement failed because of another transaction

	mu       sync.Mutex
	released bool        // the pool has the connection back
	grace    *time.Timer // since ctx ended
	cut      bool        // the grace is over
}

// expire gives the run a moment to roll back, and then closes the connection, so that the server
// rolls back. Statements under way end by their own contexts, but a run that sends none would keep
// its rows locked.
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

// Commit implements store.Transaction. The settlement and COMMIT are one message. If the settlement
// fails the server skips COMMIT.
func (t *transaction) Commit(ctx context.Context, x store.Settlement) error {
	if t.over.Swap(true) {
		return fmt.Errorf("%w: it is over", store.ErrRolledBack)
	}
	defer t.release()
	if t.doubt != nil {
		return fmt.Errorf("%w: it could not be marked: %w", store.ErrRolledBack, t.doubt)
	}
	with, err := t.s.settleIn(&x, t.mark)
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrRolledBack, err)
	}
	pg := t.conn.Conn().PgConn()
	switch {
	case t.wasCut():
		return fmt.Errorf("%w: its context has ended", store.ErrRolledBack)
	case pg.IsClosed():
		return fmt.Errorf("%w: %w: the connection was lost", store.ErrRolledBack, ErrUnreachable)
	case pg.IsBusy():
		return fmt.Errorf("%w: the run has left rows, or the results of a batch, open: close them", store.ErrRolledBack)
	case pg.TxStatus() == 'E':
		return fmt.Errorf("%w: %w", store.ErrRolledBack, ErrAborted)
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
			tag = ended // in the end it is that of COMMIT
		}
	}
	switch err := results.Close(); {
	case err == nil && tag.String() == "COMMIT":
		if later {
			remote.CatchUp(ctx, t.s.core, x.Key)
		}
		return nil
	case err == nil && tag.String() == "ROLLBACK":
		return fmt.Errorf("%w: %w", store.ErrRolledBack, ErrAborted)
	case err == nil:
		return fmt.Errorf("pgstore: the server answered COMMIT with %q", tag)
	default:
		// After an error the server answers the message to the end. If it did not, the outcome is
		// unknown. The driver cannot say whether the message was sent.
		if t.prepared && sqlState(err) == stateForgotten {
			pg.CustomData()[settle.name] = false
			t.conflict.Store(true) // so that it runs again, unprepared
		}
		if sqlState(err) == stateAlike {
			t.by.marks.Store(true)
			t.conflict.Store(true) // so that it runs again, marked
		}
		return settleFailed(err, !pg.IsClosed() && pg.TxStatus() != 'T')
	}
}

// Rollback implements store.Transaction.
func (t *transaction) Rollback() {
	if !t.over.Swap(true) {
		t.release()
	}
}

// release rolls back what is open and gives the connection back.
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

// Conflicted implements store.Transaction.
func (t *transaction) Conflicted(err error) bool { return t.conflict.Load() || conflicts(err) }

// note remembers whether an error is a conflict, and returns it.
func (t *transaction) note(err error) error {
	if conflicts(err) {
		t.conflict.Store(true)
	}
	return err
}
