package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Tx is a transaction of the application that has begun: a *sql.Tx, or what wraps one.
// It is not a *sql.DB or a *sql.Conn, on which every statement would be a transaction
// of its own. For a pgx.Tx there are functions of their own.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// statements is what this package asks of a transaction, whatever the client.
type statements interface {
	// exec runs a statement, and returns how many rows it changed, and what MySQL's
	// LAST_INSERT_ID() is then.
	exec(ctx context.Context, query string, args ...any) (changed, id int64, err error)
	// row reads the one row that a statement returns.
	row(ctx context.Context, query string, args []any, into ...any) error
	// rows calls each for each row that a statement returns.
	rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error
}

// statementsOf returns the statements of a transaction.
func statementsOf(tx Tx) (statements, error) {
	if beginner(tx) {
		return nil, fmt.Errorf("sqllock: a %T is no transaction: begin one with its BeginTx, or with Transact, and pass that", tx)
	}
	return sqlStatements{tx}, nil
}

// beginner reports whether a transaction can be begun with it, so that it is none
// itself. A *sql.DB is embedded in the types of many packages, so it is not told by
// its type.
func beginner(tx Tx) bool {
	_, ok := tx.(interface {
		BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
	})
	return ok
}

type sqlStatements struct{ tx Tx }

func (s sqlStatements) exec(ctx context.Context, query string, args ...any) (changed, id int64, err error) {
	result, err := s.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, 0, err
	}
	if changed, err = result.RowsAffected(); err != nil {
		return 0, 0, err
	}
	id, _ = result.LastInsertId() // PostgreSQL has none, and says so
	return changed, id, nil
}

func (s sqlStatements) row(ctx context.Context, query string, args []any, into ...any) error {
	return s.tx.QueryRowContext(ctx, query, args...).Scan(into...)
}

func (s sqlStatements) rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	rows, err := s.tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// lastInsertID runs a statement of MySQL that sets LAST_INSERT_ID(), to 1 or more.
func lastInsertID(ctx context.Context, s statements, query string, args ...any) (int64, error) {
	_, id, err := s.exec(ctx, query, args...)
	if err == nil && id < 1 {
		err = errNoID
	}
	return id, err
}

var errNoID = errors.New("the answer has no LAST_INSERT_ID(), which go-sql-driver/mysql and the server tell; what is in between has to pass it on")

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
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
