package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

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
