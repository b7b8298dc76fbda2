package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// invoices makes the table that the numbers are for. Nothing in it keeps a number from
// being there twice.
func (b bench) invoices(t testing.TB) {
	t.Helper()
	serial := map[Dialect]string{
		PostgreSQL: "BIGSERIAL", MySQL: "BIGINT AUTO_INCREMENT", MariaDB: "BIGINT AUTO_INCREMENT", SQLite: "INTEGER",
	}[b.d]
	b.must(t, "CREATE TABLE invoice (id "+serial+" PRIMARY KEY, number BIGINT NOT NULL)")
}

// checkInvoices checks that the numbers are 1 to as many as there are, each once, and
// that the count continues there.
func (b bench) checkInvoices(t testing.TB, s *Sequence, least int64) {
	t.Helper()
	n := b.number(t, "SELECT COUNT(*) FROM invoice")
	distinct := b.number(t, "SELECT COUNT(DISTINCT number) FROM invoice")
	highest := b.number(t, "SELECT COALESCE(MAX(number), 0) FROM invoice")
	lowest := b.number(t, "SELECT COALESCE(MIN(number), 1) FROM invoice")
	if distinct != n || highest != n || lowest != 1 || n < least {
		t.Errorf("%d invoices have %d numbers, %d to %d; wanted are %d invoices or more", n, distinct, lowest, highest, least)
	}
	if got := next(t, b, s, "invoice", 1); got != n+1 {
		t.Errorf("after %d invoices comes number %d", n, got)
	}
}

// Every other transaction rolls back.
func TestSequenceConcurrent(t *testing.T) {
	const workers, rounds = 8, 6
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, nil)
		b.invoices(t)
		own := errors.New("rolled back")
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range rounds {
					back := (w+i)%2 == 1
					err := Transact(t.Context(), b.d, b.DB, &TransactOptions{MaxTries: 1000}, func(ctx context.Context, tx *sql.Tx) error {
						if err := b.writeInvoices(ctx, tx, s, 1+i%3, func(int) {}); err != nil || !back {
							return err
						}
						return own
					})
					if err != nil && (!back || !errors.Is(err, own)) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		b.checkInvoices(t, s, workers*(1+2+3))
	})
}

// writeInvoices takes numbers and writes an invoice for each. at is called when that many
// have been written.
func (b bench) writeInvoices(ctx context.Context, tx sqlTx, s *Sequence, n int, at func(written int)) error {
	first, err := s.NextN(ctx, tx, "invoice", n)
	if err != nil {
		return err
	}
	at(0)
	for i := range n {
		if _, err := tx.ExecContext(ctx, b.sql("INSERT INTO invoice (number) VALUES ($1)"), first+int64(i)); err != nil {
			return err
		}
		at(i + 1)
	}
	return nil
}

// A session that ends takes its numbers back, wherever it was, and blocks no other session.
func TestSequenceSessionEnds(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		if b.kill == nil {
			return // no session that could be ended
		}
		s := newSequence(t, b, nil)
		b.invoices(t)
		for end := range 3 { // after the number, between the invoices, before COMMIT
			var id int64
			err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
				if err := tx.QueryRowContext(ctx, b.session).Scan(&id); err != nil {
					return err
				}
				return b.writeInvoices(ctx, tx, s, 2, func(written int) {
					if written == end {
						testkit.Check(t, b.kill(id))
					}
				})
			})
			if err == nil || !sessionEnded(err) {
				t.Errorf("ended after %d invoices: %v", end, err)
			}
			err = Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
				return b.writeInvoices(ctx, tx, s, 1, func(int) {})
			})
			testkit.Check(t, err)
		}
		b.checkInvoices(t, s, 3)
	})
}

// sessionEnded reports whether a transaction was lost together with its session.
func sessionEnded(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, ErrUnknown) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, io.ErrUnexpectedEOF) || sqlState(err) == "57P01"
}

// children work on the file in their argument. None of them ends by itself but with an error.
var children = testkit.Children{"invoices": writeAndStop}

// openFile opens a file that processes share.
func openFile(path string) (bench, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?"+patient)
	return bench{database: databases["sqlite"], DB: db}, err
}

// Where a child stops in its second transaction.
const (
	beforeNumber = "before the number"
	afterNumber  = "after the number"
	between      = "between the invoices"
	beforeCommit = "before COMMIT"
	afterCommit  = "after COMMIT"
)

// writeAndStop writes two invoices in each of two transactions.
func writeAndStop(args []string) error {
	b, err := openFile(args[0])
	if err != nil {
		return err
	}
	s, err := NewSequence(SQLite, nil)
	if err != nil {
		return err
	}
	for round := range 2 {
		reach := func(point string) {
			if round == 1 {
				failpoint.Reach(point)
			}
		}
		err := Transact(context.Background(), SQLite, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			reach(beforeNumber)
			return b.writeInvoices(ctx, tx, s, 2, func(written int) {
				reach([]string{afterNumber, between, beforeCommit}[written])
			})
		})
		if err != nil {
			return err
		}
		reach(afterCommit)
	}
	return errors.New("it was not killed")
}

// A process that is killed leaves no gap and no number twice, and blocks no other process.
func TestSequenceKilledProcess(t *testing.T) {
	t.Parallel()
	for point, committed := range map[string]int64{beforeNumber: 2, afterNumber: 2, between: 2, beforeCommit: 2, afterCommit: 4} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "test.db")
			b, err := openFile(path)
			testkit.Must(t, err)
			defer b.Close()
			s := newSequence(t, b, nil)
			b.invoices(t)
			child := failpoint.Start(t, point, testkit.Child("invoices", path))
			child.Await()
			// This transaction waits for the child's.
			got := make(chan error, 1)
			go func() {
				got <- Transact(t.Context(), SQLite, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
					return b.writeInvoices(ctx, tx, s, 1, func(int) {})
				})
			}()
			child.Kill()
			testkit.Check(t, <-got)
			b.checkInvoices(t, s, committed+1)
			if n := b.number(t, "SELECT COUNT(*) FROM invoice"); n != committed+1 {
				t.Errorf("there are %d invoices; %d were committed", n, committed+1)
			}
		})
	}
}

// TestRowKeepsItsNumber: every row is numbered once, though its event fires many times at once and
// some of the transactions roll back.
func TestRowKeepsItsNumber(t *testing.T) {
	const rows, events = 5, 6
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, nil)
		b.must(t, "CREATE TABLE invoice (id BIGINT PRIMARY KEY, number BIGINT)")
		for id := range rows {
			b.must(t, "INSERT INTO invoice (id) VALUES ($1)", id)
		}
		type invoice struct {
			id     int64
			number sql.NullInt64
		}
		row := newRow(t, b.d, &RowOptions[invoice]{
			Select: b.sql("SELECT id, number FROM invoice WHERE id = $1"), MaxTries: 1000,
			Fields: func(i *invoice) []any { return []any{&i.id, &i.number} },
			Update: b.sql("UPDATE invoice SET number = $1 WHERE id = $2"),
			Values: func(i *invoice) []any { return []any{i.number, i.id} },
		})
		own := errors.New("rolled back")
		var all sync.WaitGroup
		for id := range rows {
			var mu sync.Mutex
			seen := map[int64]bool{}
			for event := range events {
				all.Go(func() {
					i, err := row.Update(t.Context(), b.DB, func(ctx context.Context, tx *sql.Tx, i *invoice) (err error) {
						if !i.number.Valid {
							i.number.Int64, err = s.Next(ctx, tx, "invoice")
							i.number.Valid = true
						}
						if err == nil && event%3 == 0 {
							return own
						}
						return err
					}, int64(id))
					if event%3 == 0 {
						if !errors.Is(err, own) {
							t.Errorf("an event that fails: %v", err)
						}
						return
					}
					testkit.Check(t, err)
					mu.Lock()
					defer mu.Unlock()
					if seen[i.number.Int64] = true; len(seen) > 1 {
						t.Errorf("invoice %d had the numbers %v", id, seen)
					}
				})
			}
		}
		all.Wait()
		b.checkInvoices(t, s, rows)
	})
}

// TestNoFunction: a call without a function is refused before a connection is asked for a lock.
func TestNoFunction(t *testing.T) {
	ctx, key := t.Context(), NameKey("a", "b")
	row := newRow(t, SQLite, (bench{database: database{d: SQLite}}).accountOptions())
	for call, do := range map[string]func() error{
		"Advisory.Do":    func() error { return new(Advisory).Do(ctx, key, nil, nil) },
		"Advisory.TryDo": func() error { return new(Advisory).TryDo(ctx, key, nil, nil) },
		"Named.Do":       func() error { return new(Named).Do(ctx, "a", nil, nil) },
		"Named.TryDo":    func() error { return new(Named).TryDo(ctx, "a", nil, nil) },
		"Transact":       func() error { return Transact(ctx, SQLite, nil, nil, nil) },
		"Row.Update": func() error {
			_, err := row.Update(ctx, nil, nil, 1)
			return err
		},
		"Row.UpdateOptimistic": func() error {
			_, err := row.UpdateOptimistic(ctx, nil, nil, 1)
			return err
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), call+" was given no function") {
			t.Errorf("%s without a function: %v", call, err)
		}
	}
}
