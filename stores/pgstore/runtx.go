package pgstore

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// runTx is the transaction that a run gets, or a savepoint in it. It notes conflicts, even if
// the run does not return the error. Once the run is over it returns pgx.ErrTxClosed.
type runTx struct {
	pgx.Tx
	t         *transaction
	savepoint bool
}

// Begin makes a savepoint.
func (r *runTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := r.open(); err != nil {
		return nil, err
	}
	tx, err := r.Tx.Begin(ctx)
	if err != nil {
		return nil, r.t.note(err)
	}
	return &runTx{Tx: tx, t: r.t, savepoint: true}, nil
}

// Commit releases the savepoint. The transaction itself refuses it.
func (r *runTx) Commit(ctx context.Context) error {
	if !r.savepoint {
		return ErrOwnTransaction
	}
	if err := r.open(); err != nil {
		return err
	}
	return r.t.note(r.Tx.Commit(ctx))
}

// Rollback rolls back to the savepoint. The transaction itself refuses it.
func (r *runTx) Rollback(ctx context.Context) error {
	if !r.savepoint {
		return ErrOwnTransaction
	}
	if err := r.open(); err != nil {
		return err
	}
	err := r.Tx.Rollback(ctx)
	if err == nil && r.t.mark {
		r.t.mark = false // the mark may be younger than the savepoint
		r.t.watch(ctx)
	}
	return r.t.note(err)
}

// open returns pgx.ErrTxClosed when the run is over, because the connection may serve another
// caller by then.
func (r *runTx) open() error {
	if r.t.over.Load() {
		return pgx.ErrTxClosed
	}
	return nil
}

// look marks the transaction before a statement that could end it and begin a transaction that
// looks the same: AND CHAIN, BEGIN DEFERRABLE.
func (r *runTx) look(ctx context.Context, sql string) {
	if sql = strings.ToLower(sql); strings.Contains(sql, "chain") || strings.Contains(sql, "deferrable") {
		r.t.watch(ctx)
	}
}

// Conn returns the connection. The transaction is marked first, because the run may do anything
// with it.
func (r *runTx) Conn() *pgx.Conn {
	if r.open() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackLimit)
		defer cancel()
		r.t.watch(ctx)
	}
	return r.Tx.Conn()
}

func (r *runTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := r.open(); err != nil {
		return pgconn.CommandTag{}, err
	}
	r.look(ctx, sql)
	tag, err := r.Tx.Exec(ctx, sql, args...)
	return tag, r.t.note(err)
}

func (r *runTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := r.open(); err != nil {
		return failedRows{err: err}, err
	}
	r.look(ctx, sql)
	rows, err := r.Tx.Query(ctx, sql, args...)
	return notedRows{Rows: rows, t: r.t}, r.t.note(err)
}

func (r *runTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := r.open(); err != nil {
		return failedRows{err: err}
	}
	r.look(ctx, sql)
	return notedRow{row: r.Tx.QueryRow(ctx, sql, args...), t: r.t}
}

func (r *runTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := r.open(); err != nil {
		return nil, err
	}
	r.look(ctx, sql)
	description, err := r.Tx.Prepare(ctx, name, sql)
	return description, r.t.note(err)
}

func (r *runTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := r.open(); err != nil {
		return 0, err
	}
	n, err := r.Tx.CopyFrom(ctx, table, columns, rows)
	return n, r.t.note(err)
}

func (r *runTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := r.open(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	for _, q := range b.QueuedQueries {
		r.look(ctx, q.SQL)
	}
	return notedResults{BatchResults: r.Tx.SendBatch(ctx, b), t: r.t}
}

// notedRows, notedRow and notedResults note the errors that come after the call.
type notedRows struct {
	pgx.Rows
	t *transaction
}

func (r notedRows) Err() error { return r.t.note(r.Rows.Err()) }

type notedRow struct {
	row pgx.Row
	t   *transaction
}

func (r notedRow) Scan(dest ...any) error { return r.t.note(r.row.Scan(dest...)) }

type notedResults struct {
	pgx.BatchResults
	t *transaction
}

func (r notedResults) Exec() (pgconn.CommandTag, error) {
	tag, err := r.BatchResults.Exec()
	return tag, r.t.note(err)
}

func (r notedResults) Query() (pgx.Rows, error) {
	rows, err := r.BatchResults.Query()
	return notedRows{Rows: rows, t: r.t}, r.t.note(err)
}

func (r notedResults) QueryRow() pgx.Row { return notedRow{row: r.BatchResults.QueryRow(), t: r.t} }

func (r notedResults) Close() error { return r.t.note(r.BatchResults.Close()) }

// failedRows are the rows of a query that was not sent.
type failedRows struct{ err error }

func (r failedRows) Close()                                       {}
func (r failedRows) Err() error                                   { return r.err }
func (r failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                            { return r.err }
func (r failedRows) Values() ([]any, error)                       { return nil, r.err }
func (r failedRows) RawValues() [][]byte                          { return nil }
func (r failedRows) Conn() *pgx.Conn                              { return nil }
func (r failedRows) TypeMap() *pgtype.Map                         { return nil }
