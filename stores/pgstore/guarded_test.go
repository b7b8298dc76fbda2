package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestOwnTransaction: a run can neither commit nor roll back, and what it keeps of
// its transaction is worth nothing when it is over.
func TestOwnTransaction(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	tr := b.s.Transactions(b.pool, nil)
	var kept, point pgx.Tx
	_, err := OnceTx(t.Context(), b.client, tr, "k", nil, func(ctx context.Context, tx pgx.Tx) (_ int, err error) {
		defer tx.Rollback(ctx) // as many do
		kept = tx
		if other, ok := Tx(ctx); !ok || other.Conn() != tx.Conn() {
			t.Error("the context carries another transaction")
		}
		if _, err := tx.Exec(ctx, b.entry("k")); err != nil {
			return 0, err
		}
		if err := tx.Commit(ctx); !errors.Is(err, ErrOwnTransaction) {
			t.Errorf("Commit: %v, want ErrOwnTransaction", err)
		}
		if err := tx.Rollback(ctx); !errors.Is(err, ErrOwnTransaction) {
			t.Errorf("Rollback: %v, want ErrOwnTransaction", err)
		}
		// A savepoint is the run's.
		if point, err = tx.Begin(ctx); err != nil {
			return 0, err
		}
		if _, err := point.Exec(ctx, "SELECT 1/0"); err == nil {
			t.Error("a division by zero went well")
		}
		if err := point.Rollback(ctx); err != nil {
			return 0, err
		}
		err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, b.entry("k"))
			return err
		})
		return 0, err
	})
	testkit.Must(t, err)
	if n := b.entries(t, "k"); n != 2 {
		t.Errorf("%d entries, want 2", n)
	}
	ctx := t.Context()
	for _, tx := range []pgx.Tx{kept, point} {
		_, exec := tx.Exec(ctx, "SELECT 1")
		rows, query := tx.Query(ctx, "SELECT 1")
		rows.Close()
		_, begin := tx.Begin(ctx)
		_, prepare := tx.Prepare(ctx, "", "SELECT 1")
		_, copies := tx.CopyFrom(ctx, pgx.Identifier{"x"}, []string{"x"}, pgx.CopyFromRows(nil))
		for _, err := range []error{
			exec, query, begin, prepare, copies, tx.QueryRow(ctx, "SELECT 1").Scan(), tx.SendBatch(ctx, &pgx.Batch{}).Close(),
		} {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("after the run: %v, want ErrTxClosed", err)
			}
		}
	}
	if _, ok := Tx(ctx); ok {
		t.Error("there is a transaction where none is")
	}
	if _, err := OnceTx(ctx, b.client, b.s.SQLTransactions(b.db, nil), "other", nil, func(context.Context, pgx.Tx) (int, error) { return 0, nil }); err == nil {
		t.Error("OnceTx works with a Transactor of database/sql")
	}
}

// TestRowsLeftOpen: a run that has not read all rows of a query is not committed, and the error
// says why.
func TestRowsLeftOpen(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	_, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.pool, nil), "k", nil, func(ctx context.Context, tx pgx.Tx) (int, error) {
		if _, err := tx.Exec(ctx, b.entry("k")); err != nil {
			return 0, err
		}
		rows, err := tx.Query(ctx, "SELECT generate_series(1, 1000000)") //nolint:sqlclosecheck // that is what is tried
		t.Cleanup(rows.Close)
		return 0, err
	})
	if !errors.Is(err, store.ErrRolledBack) || !strings.Contains(err.Error(), "close them") || b.entries(t, "k") != 0 {
		t.Errorf("%v, %d entries", err, b.entries(t, "k"))
	}
}

// TestConflictsAreNoted: a run that does not return the error of a conflict runs again all the
// same, whatever method made the statement.
func TestConflictsAreNoted(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	const conflict = "DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$"
	if _, err := b.pool.Exec(t.Context(), `CREATE FUNCTION `+b.s.names.schema+`.conflict() RETURNS int LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40P01'; END $$`); err != nil {
		t.Fatal(err)
	}
	function := "SELECT " + b.s.names.schema + ".conflict()"
	batch := func() *pgx.Batch {
		queue := &pgx.Batch{}
		queue.Queue(function)
		return queue
	}
	for name, suffer := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Exec":     func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, conflict); return err },
		"QueryRow": func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, function).Scan(new(int)) },
		"Query": func(ctx context.Context, tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, function)
			_, err := pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"SendBatch": func(ctx context.Context, tx pgx.Tx) error { return tx.SendBatch(ctx, batch()).Close() },
		"SendBatch, Exec": func(ctx context.Context, tx pgx.Tx) error {
			r := tx.SendBatch(ctx, batch())
			defer r.Close()
			_, err := r.Exec()
			return err
		},
		"SendBatch, QueryRow": func(ctx context.Context, tx pgx.Tx) error {
			r := tx.SendBatch(ctx, batch())
			defer r.Close()
			return r.QueryRow().Scan(new(int))
		},
		"savepoint": func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, conflict); return err })
		},
	} {
		ran := 0
		_, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.pool, nil), name, nil, func(ctx context.Context, tx pgx.Tx) (int, error) {
			if ran++; ran == 1 {
				if err := suffer(ctx, tx); err == nil {
					t.Errorf("%s: no conflict", name)
				}
				return 0, errors.New("something went wrong")
			}
			return 0, nil
		})
		if err != nil || ran != 2 {
			t.Errorf("%s: %v, after %d runs", name, err, ran)
		}
	}
}

// TestForgottenStatement: where what was prepared on a connection is forgotten, as it
// is when a pooler changes connections, a run is made again without.
func TestForgottenStatement(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL()+"&pool_max_conns=1", nil)
	tr := b.s.Transactions(b.pool, nil)
	for i := range 3 {
		key, ran := fmt.Sprint("k", i), 0
		_, err := OnceTx(t.Context(), b.client, tr, key, nil, func(ctx context.Context, tx pgx.Tx) (int, error) {
			if ran++; i == 0 && ran == 1 {
				if _, err := tx.Exec(ctx, `DEALLOCATE "`+b.s.sql.settleIn.name+`"`); err != nil {
					return 0, err
				}
			}
			_, err := tx.Exec(ctx, b.entry(key))
			return 0, err
		})
		if want := max(1, 2-i); err != nil || ran != want || b.entries(t, key) != 1 {
			t.Errorf("%v, after %d runs, want %d; %d entries", err, ran, want, b.entries(t, key))
		}
	}
}

// TestTransactionAlike: if a run ends its transaction and begins one that looks the same, no answer
// is kept, whatever the statements and the defaults are.
func TestTransactionAlike(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		param, sql string
		way        func(ctx context.Context, tx pgx.Tx, sql string) error
	}{
		"begun anew":       {sql: "ROLLBACK; BEGIN"},
		"by default":       {param: "&default_transaction_deferrable=on", sql: "ROLLBACK; BEGIN"},
		"deferrable":       {sql: "ROLLBACK; BEGIN DEFERRABLE"},
		"new default":      {sql: "SET default_transaction_deferrable = on; ROLLBACK; BEGIN"},
		"chained":          {sql: "ROLLBACK AND CHAIN"},
		"behind a comment": {sql: "ROLLBACK/**/AND/* no */CHAIN"},
		"in a batch": {sql: "ROLLBACK AND CHAIN", way: func(ctx context.Context, tx pgx.Tx, sql string) error {
			var q pgx.Batch
			q.Queue(sql)
			return tx.SendBatch(ctx, &q).Close()
		}},
		"prepared": {sql: "ROLLBACK AND CHAIN", way: func(ctx context.Context, tx pgx.Tx, sql string) error {
			if _, err := tx.Prepare(ctx, "leave", sql); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "leave")
			return err
		}},
		"on the connection": {sql: "ROLLBACK AND CHAIN", way: func(ctx context.Context, tx pgx.Tx, sql string) error {
			_, err := tx.Conn().Exec(ctx, sql)
			return err
		}},
		"behind a savepoint": {sql: "ROLLBACK AND CHAIN", way: func(ctx context.Context, tx pgx.Tx, sql string) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			_, err = inner.Exec(ctx, sql)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, shared().URL()+c.param, nil)
			got, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.pool, nil), "k", nil, func(ctx context.Context, tx pgx.Tx) (string, error) {
				if _, err := tx.Exec(ctx, b.entry("k"), pgx.QueryExecModeSimpleProtocol); err != nil {
					return "", err
				}
				if c.way != nil {
					return "wrong", c.way(ctx, tx, c.sql)
				}
				_, err := tx.Exec(ctx, c.sql, pgx.QueryExecModeSimpleProtocol)
				return "wrong", err
			})
			if !errors.Is(err, ErrTransactionEnded) || !strings.Contains(err.Error(), "remove that statement; dibs commits when the run returns") || got != "" {
				t.Errorf("answered %q, %v; want ErrTransactionEnded with its cure", got, err)
			}
			if n := b.entries(t, "k"); n != 0 {
				t.Errorf("%d entries are there", n)
			}
		})
	}
}

// TestTransactionNotAlike: what only looks as if it could end the transaction does not,
// nor does the database's own default.
func TestTransactionNotAlike(t *testing.T) {
	t.Parallel()
	for name, param := range map[string]string{"plain": "", "by default": "&default_transaction_deferrable=on"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, shared().URL()+param, nil)
			for _, key := range []string{"a chain, deferrable", "another chain"} {
				got, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.pool, nil), key, nil, func(ctx context.Context, tx pgx.Tx) (string, error) {
					inner, err := tx.Begin(ctx)
					if err != nil {
						return "", err
					}
					if _, err := inner.Exec(ctx, b.entry(key)); err != nil {
						return "", err
					}
					if err := inner.Rollback(ctx); err != nil {
						return "", err
					}
					_, err = tx.Exec(ctx, b.entry(key))
					return "right", err
				})
				if err != nil || got != "right" || b.entries(t, key) != 1 {
					t.Errorf("%s: answered %q, %v, with %d entries", key, got, err, b.entries(t, key))
				}
			}
		})
	}
}
