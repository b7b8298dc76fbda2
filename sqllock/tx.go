package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Tx is a transaction that the application has begun: a *sql.Tx, a wrapper with its
// methods, or, on PostgreSQL, a pgx.Tx. A pool or a connection, which has no Commit, is
// refused, because there each statement would be a transaction of its own.
type Tx any

// sqlTx is a transaction of database/sql.
type sqlTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// statements are what this package asks of a transaction, whatever the client.
type statements interface {
	// exec runs a statement. It returns the number of changed rows and MySQL's
	// LAST_INSERT_ID().
	exec(ctx context.Context, query string, args ...any) (changed, id int64, err error)
	// row reads the one row that a statement returns.
	row(ctx context.Context, query string, args []any, into ...any) error
	// rows calls each for every row that a statement returns.
	rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error
}

// statementsOf returns the statements of a transaction.
func statementsOf(d Dialect, tx Tx) (statements, error) {
	s, pool, err := statementsOn(d, tx)
	if pool {
		err = fmt.Errorf("sqllock: a %T is not a transaction, because it has no Commit: begin one with BeginTx, or with Transact, and pass that", tx)
	}
	return s, err
}

// statementsOn returns the statements of a transaction or of a pool.
func statementsOn(d Dialect, db any) (s statements, pool bool, err error) {
	switch tx := db.(type) {
	case pgx.Tx:
		if d != PostgreSQL {
			return nil, false, fmt.Errorf("sqllock: a %T is a transaction of PostgreSQL, and this was made for %v", tx, d)
		}
		return pgxStatements{tx}, false, nil
	case sqlTx:
		// Many packages wrap pools, so the type does not tell.
		_, commits := tx.(interface{ Commit() error })
		return sqlStatements{tx}, !commits, nil
	}
	return nil, false, fmt.Errorf("sqllock: a %T is not a transaction: pass a *sql.Tx or a pgx.Tx", db)
}

type sqlStatements struct{ tx sqlTx }

func (s sqlStatements) exec(ctx context.Context, query string, args ...any) (changed, id int64, err error) {
	result, err := s.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, 0, err
	}
	if changed, err = result.RowsAffected(); err != nil {
		return 0, 0, err
	}
	id, _ = result.LastInsertId() // PostgreSQL returns an error
	return changed, id, nil
}

func (s sqlStatements) row(ctx context.Context, query string, args []any, into ...any) error {
	return s.tx.QueryRowContext(ctx, query, args...).Scan(into...)
}

func (s sqlStatements) rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	rows, err := s.tx.QueryContext(ctx, query, args...) //nolint:rowserrcheck // readAll returns it
	if err != nil {
		return err
	}
	defer rows.Close()
	return readAll(rows, each)
}

// readAll calls each for every row.
func readAll(rows interface {
	Next() bool
	Scan(...any) error
	Err() error
}, each func(scan func(...any) error) error) error {
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// lastInsertID runs a statement of MySQL that sets LAST_INSERT_ID() to 1 or more.
func lastInsertID(ctx context.Context, s statements, query string, args ...any) (int64, error) {
	_, id, err := s.exec(ctx, query, args...)
	if err == nil && id < 1 {
		err = errNoID
	}
	return id, err
}

var errNoID = errors.New("the answer has no LAST_INSERT_ID(); use go-sql-driver/mysql, and a proxy that passes LAST_INSERT_ID() on")

type pgxStatements struct{ tx pgx.Tx }

func (s pgxStatements) exec(ctx context.Context, query string, args ...any) (changed, id int64, err error) {
	tag, err := s.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), 0, err
}

func (s pgxStatements) row(ctx context.Context, query string, args []any, into ...any) error {
	return s.tx.QueryRow(ctx, query, args...).Scan(into...)
}

func (s pgxStatements) rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	rows, err := s.tx.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return readAll(rows, each)
}
