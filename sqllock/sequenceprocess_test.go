package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// childVar names the file that this test binary takes numbers in, without end, when it
// is started as another process with it.
const childVar = "SQLLOCK_TEST_CHILD"

func init() {
	if path := os.Getenv(childVar); path != "" {
		fmt.Fprintln(os.Stderr, takeNumbers(path))
		os.Exit(1)
	}
}

// sqliteFile is a file with its driver's parameters.
func sqliteFile(path string) string {
	return "file:" + path + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
}

// takeNumbers writes invoices, one for each number, and never ends by itself.
func takeNumbers(path string) error {
	db, err := sql.Open("sqlite", sqliteFile(path))
	if err != nil {
		return err
	}
	s, err := NewSequence(SQLite, nil)
	if err != nil {
		return err
	}
	for {
		n := 1 + rand.IntN(3)
		back := rand.IntN(2) == 0
		err := Transact(context.Background(), SQLite, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			first, err := s.NextN(ctx, tx, "invoice", n)
			if err != nil {
				return err
			}
			for i := range n {
				if _, err := tx.ExecContext(ctx, "INSERT INTO invoice (number) VALUES (?)", first+int64(i)); err != nil {
					return err
				}
			}
			if back {
				return sql.ErrTxDone // any error rolls back
			}
			return nil
		})
		if err != nil && !back {
			return err
		}
	}
}

// Processes that take numbers in one file are killed at any moment.
func TestSequenceKilledProcesses(t *testing.T) {
	t.Parallel()
	const processes, kills = 4, 30
	path := filepath.Join(t.TempDir(), "test.db")
	b := bench{database: databases()["sqlite"], DB: openDB(t, "sqlite", sqliteFile(path))}
	s := newSequence(t, b, nil)
	b.invoices(t)
	var wg sync.WaitGroup
	for p := range processes {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(p), 5))
			for range kills / processes {
				var errors strings.Builder
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), childVar+"="+path)
				cmd.Stderr = &errors
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				// When it has come so far that there is something to lose.
				before := invoiceCount(b)
				deadline := time.Now().Add(30 * time.Second)
				for invoiceCount(b) < before+20 && time.Now().Before(deadline) {
					_ = sleep(t.Context(), 2*time.Millisecond)
				}
				_ = sleep(t.Context(), time.Duration(r.Int64N(int64(5*time.Millisecond)))) // any moment will do
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
				_ = cmd.Wait()
				if errors.Len() > 0 {
					t.Errorf("a process ended by itself: %s", &errors)
				}
			}
		})
	}
	wg.Wait()
	b.checkInvoices(t, s, 20)
}

func invoiceCount(b bench) int64 {
	var n int64
	_ = b.QueryRow("SELECT COUNT(*) FROM invoice").Scan(&n)
	return n
}
