package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/internal/failpoint"
)

// These variables make this test binary a child, and name the file that it works on.
const (
	childVar  = "SQLLOCK_TEST_CHILD"
	childPath = "SQLLOCK_TEST_FILE"
)

// children are what it can be. None of them ends by itself but with an error.
var children = map[string]func(path string) error{"invoices": writeAndStop}

// startChild starts a child that stops at the point, which may be "".
func startChild(t testing.TB, point, child, path string) *failpoint.Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+child, childPath+"="+path)
	return failpoint.Start(t, point, cmd)
}

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
func writeAndStop(path string) error {
	b, err := openFile(path)
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
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			s := newSequence(t, b, nil)
			b.invoices(t)
			child := startChild(t, point, "invoices", path)
			child.Await()
			// This transaction waits for the child's.
			got := make(chan error, 1)
			go func() {
				got <- Transact(t.Context(), SQLite, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
					return b.writeInvoices(ctx, tx, s, 1, func(int) {})
				})
			}()
			child.Kill()
			if err := <-got; err != nil {
				t.Error(err)
			}
			b.checkInvoices(t, s, committed+1)
			if n := b.number(t, "SELECT COUNT(*) FROM invoice"); n != committed+1 {
				t.Errorf("there are %d invoices; %d were committed", n, committed+1)
			}
		})
	}
}
