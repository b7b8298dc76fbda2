package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// ledgerClient are the options of clients beside a ledger. Their keys are those of lock. No
// machine is too slow for their calls.
var ledgerClient = &dibs.Options{Namespace: "test", Timeout: testkit.Limit}

// openLedger makes a ledger in a shared file.
func openLedger(t testing.TB, path string, clock clock) (*Store, *sql.DB, *dibs.Client) {
	t.Helper()
	s := openTest(t, path, &Options{Shared: true}, clock)
	db, err := s.OpenDB()
	testkit.Must(t, err)
	c, err := dibs.New(s, ledgerClient)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, errors.Join(c.Close(), db.Close())) })
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS ledger (k TEXT NOT NULL, entry TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return s, db, c
}

// bookOnce books a unique entry, and returns it.
func bookOnce(c *dibs.Client, t store.Transactor, k string, ttl time.Duration) (string, error) {
	return OnceTx(context.Background(), c, t, k, &dibs.OnceOptions{TTL: ttl}, func(ctx context.Context, tx *sql.Tx) (string, error) {
		return bookEntry(ctx, tx, k)
	})
}

func bookEntry(ctx context.Context, tx *sql.Tx, k string) (string, error) {
	entry := store.NewToken().ID()
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (k, entry) VALUES (?, ?)", k, entry)
	return entry, err
}
