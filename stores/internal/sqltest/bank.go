package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Bank is an application with a ledger on the server of the store.
type Bank struct {
	*Kind
	URL, Name  string // of the store
	Store      Store
	Client     *dibs.Client
	Transactor store.Transactor
	// Over returns transactions of that kind on another address of the server.
	Over   func(addr string) store.Transactor
	DB     *sql.DB // for the tests' own queries
	Ledger string  // its table, with a column "what"
	// Exec carries SQL out in the transaction of the context.
	Exec func(ctx context.Context, sql string) error
	// Settle settles a key in the transaction of the context, and leaves that open.
	Settle func(ctx context.Context, x store.Settlement) error
	// Connection returns the number of the connection of the transaction.
	Connection func(ctx context.Context) (string, error)
	// Commit commits the transaction of the context.
	Commit func(ctx context.Context) error
}

// entry is the statement that makes an entry.
func (b *Bank) entry(what string) string {
	return fmt.Sprintf("INSERT INTO %s (what) VALUES ('%s')", b.Ledger, what)
}

// touch is a statement that changes a row.
func (b *Bank) touch(row string) string {
	return fmt.Sprintf("UPDATE %s SET what=CONCAT(what, '') WHERE what='%s'", b.Ledger, row)
}

// Entries counts the entries with that name.
func (b *Bank) Entries(t testing.TB, what string) (n int) {
	t.Helper()
	testkit.Must(t, b.DB.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+b.Ledger+" WHERE what='"+what+"'").Scan(&n))
	return n
}

// book makes an entry in a new run, and checks that it ran.
func (b *Bank) book(t testing.TB, key string) {
	t.Helper()
	before := b.Entries(t, key)
	got, err := dibs.OnceIn(t.Context(), b.Client, b.Transactor, key, nil, func(ctx context.Context) (string, error) {
		return "booked " + key, b.Exec(ctx, b.entry(key))
	})
	if n := b.Entries(t, key); err != nil || got != "booked "+key || n != before+1 {
		t.Errorf("%s: then %q, %v, and %d entries after %d", key, got, err, n, before)
	}
}

// begin begins a transaction and makes an entry in it.
func (b *Bank) begin(t testing.TB) (context.Context, store.Transaction) {
	t.Helper()
	tx, err := b.Transactor.Begin(t.Context())
	testkit.Must(t, err)
	t.Cleanup(tx.Rollback)
	ctx := store.WithTransaction(t.Context(), tx)
	testkit.Must(t, b.Exec(ctx, b.entry("k")))
	return ctx, tx
}

// keeps returns a settlement that writes a record.
func keeps(token store.Token) store.Settlement {
	return store.Settlement{Key: store.Key{Name: "k"}, Token: token, Outcome: store.Keep, Data: []byte(`{"value":"answer"}`), Retention: time.Hour}
}
