package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/internal/product"
)

// ErrLocal: the server is a node of a cluster, or only looks like PostgreSQL or MySQL, and its locks
// do not exclude the sessions of other nodes, or nobody.
var ErrLocal = errors.New("sqllock: the lock would not exclude all others")

// refuseLocal returns ErrLocal if the server is a product on which locks do not exclude all others.
func refuseLocal(ctx context.Context, db *sql.DB, p *product.Protocol) error {
	ctx, cancel := context.WithTimeout(ctx, 2*answerLimit)
	defer cancel()
	met, err := p.Ask(func(question string, add func(name, text string)) error {
		err := ask(ctx, db, question, add)
		// All products answer the first question. A server that lets nobody in refuses all.
		if question != p.Questions[0] && (sqlState(err) != "" || mysqlNumber(err) != 0) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrServer, err)
	}
	return localError(met)
}

// ask calls add with the rows of a question, see product.Protocol.
func ask(ctx context.Context, db *sql.DB, question string, add func(name, text string)) error {
	rows, err := db.QueryContext(ctx, question)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	name, text := question, ""
	into := []any{&name, &text}
	if len(columns) == 1 {
		into = into[1:]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		add(name, text)
	}
	return rows.Err()
}

// localError returns the ErrLocal of what a server is, or nil.
func localError(met *product.Met) error {
	p := met.Refusing(product.OfLocks)
	if p == nil {
		return nil
	}
	return fmt.Errorf("%w: %s (use a lease of a dibs store on another server; see %s)", ErrLocal, p.Refusal(), p.Source)
}
