package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
