package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// suite describes this store to package sqltest.
func suite() *sqltest.Kind {
	return &sqltest.Kind{
		Server: shared(),
		Own: func(t testing.TB, connections int) sqltest.Server {
			return servertest.Postgres(t, &servertest.PostgresOptions{MaxConnections: connections})
		},
		Open: func(t testing.TB, url, name string, pruneEvery time.Duration) sqltest.Store {
			return open(t, url, &Options{Schema: name, Prefix: "in_" + name, PruneEvery: pruneEvery})
		},
		Listen: func(t testing.TB, s sqltest.Store) { untilListening(t, s.(*Store)) },
		DB:     openDB,
		Apart: func(_ testing.TB, server sqltest.Server) (url, connections string) {
			name := testkit.Own()
			return server.URL() + "&application_name=" + name, "SELECT pid FROM pg_stat_activity WHERE application_name = '" + name + "'"
		},
		Database:  func() string { return ownDatabase(shared()) },
		Others:    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
		Deadlocks: "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
		// A function that comes before the server's own in the search_path: the store's
		// functions do not know.
		Skewed: func(t testing.TB, name string) (func() sqltest.Store, func(time.Duration)) {
			url := ownDatabase(shared())
			db := openDB(t, url)
			exec := func(text string) {
				if _, err := db.ExecContext(t.Context(), text); err != nil {
					t.Fatal(err)
				}
			}
			exec("CREATE SCHEMA wrong")
			exec("CREATE TABLE wrong.clock (off interval)")
			exec("INSERT INTO wrong.clock VALUES ('0')")
			exec(`CREATE FUNCTION wrong.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
				AS 'SELECT pg_catalog.clock_timestamp() + c.off FROM wrong.clock c'`)
			open := func() sqltest.Store { return open(t, url+"&search_path=wrong,pg_catalog", &Options{Schema: name}) }
			return open, func(back time.Duration) {
				exec(fmt.Sprintf("UPDATE wrong.clock SET off = '-%f seconds'", back.Seconds()))
			}
		},
		Names:      func(s sqltest.Store, text string) string { return s.(*Store).names.sql(text) },
		Bytes:      `'\x%x'::bytea`,
		End:        "SELECT pg_terminate_backend(%s, 60000)",
		NewKey:     "INSERT INTO @key (k, fence) VALUES (%s, 0)",
		RunOut:     "UPDATE @key SET ends = since + 1 WHERE ends > 0",
		Random:     "random()",
		Sleep:      "SELECT pg_sleep(%f)",
		CommitText: "commit",
		LockWait:   2 * time.Second,
		SweepSoon:  "UPDATE @key SET since = since - 120000000; UPDATE @meta SET swept = 0",
		Later:      "UPDATE @meta SET swept = swept - 120000000",
		Forget: func(t testing.TB, s sqltest.Store) {
			_, err := s.Prune(t.Context(), 0)
			testkit.Must(t, err)
		},
		KeepSweep: func(ctx context.Context, s sqltest.Store) error { return s.(*Store).keepSweep(ctx) },
		TakeSweep: func(ctx context.Context, s sqltest.Store) (bool, error) {
			sweep, err := s.(*Store).takeSweep(ctx)
			return sweep != nil, err
		},
		Records: []string{"@key WHERE rec_ends > 0"},
		Locked:  ErrLocked, Crowded: ErrCrowded, Explain: explain,
	}
}

// openDB opens a pool of the application's.
func openDB(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestServer(t *testing.T) {
	t.Parallel()
	suite().Run(t)
}

// suiteBank opens a bank of the suite's, with transactions of that kind.
func suiteBank(t *testing.T, name string) *sqltest.Bank {
	kind := kinds[name]
	b := newBank(t, kind.url(), nil)
	return &sqltest.Bank{
		Kind: suite(), URL: kind.url(), Name: b.s.names.schema, Store: b.s, Client: b.client,
		Transactor: kind.transactor(b), DB: b.db, Ledger: b.ledger, Exec: exec, Over: func(addr string) store.Transactor { return kind.transactor(b.over(t, addr)) },
		Settle: func(ctx context.Context, x store.Settlement) error {
			own, ok := store.TransactionFrom(ctx).(*transaction)
			with, err := b.s.settleIn(&x, !ok || own.mark)
			switch {
			case err != nil:
			case ok:
				_, err = own.tx.Exec(ctx, b.s.sql.settleIn.sql, with...)
			default:
				own, _ := SQLTx(ctx)
				_, err = own.ExecContext(ctx, b.s.sql.settleIn.sql, with...)
			}
			return err
		},
		Connection: func(ctx context.Context) (number string, err error) {
			if own, ok := SQLTx(ctx); ok {
				err = own.QueryRowContext(ctx, "SELECT pg_backend_pid()::text").Scan(&number)
			} else {
				err = store.TransactionFrom(ctx).(*transaction).tx.QueryRow(ctx, "SELECT pg_backend_pid()::text").Scan(&number)
			}
			return number, err
		},
		Commit: func(ctx context.Context) error {
			if own, ok := SQLTx(ctx); ok {
				return own.Commit()
			}
			return store.TransactionFrom(ctx).(*transaction).tx.Commit(ctx)
		},
	}
}

// exec carries SQL out in a transaction of either kind.
func exec(ctx context.Context, text string) (err error) {
	if own, ok := SQLTx(ctx); ok {
		_, err = own.ExecContext(ctx, text)
	} else {
		own, _ := Tx(ctx)
		_, err = own.Exec(ctx, text)
	}
	return err
}

// failing is how runs fail.
func failing(b *sqltest.Bank) map[string]sqltest.Failing {
	boom := fmt.Errorf("boom")
	b.Server.Query(fmt.Sprintf(`CREATE TABLE %[1]s_other (id int PRIMARY KEY);
		CREATE TABLE %[1]s_checked (id int REFERENCES %[1]s_other DEFERRABLE INITIALLY DEFERRED)`, b.Ledger))
	return map[string]sqltest.Failing{
		"error":            {Err: boom, Is: boom},
		"constraint":       {SQL: []string{"INSERT INTO " + b.Ledger + " VALUES (NULL)"}, Says: "23502"},
		"timeout":          {SQL: []string{"SET LOCAL statement_timeout = '1ms'; SELECT pg_sleep(60)"}, Says: "57014"},
		"swallowed":        {SQL: []string{"SELECT 1/0"}, Swallows: true, Is: ErrAborted},
		"rolled back":      {SQL: []string{"ROLLBACK"}, Is: ErrTransactionEnded},
		"begun anew":       {SQL: []string{"ROLLBACK; BEGIN"}, Is: ErrTransactionEnded},
		"chained":          {SQL: []string{"ROLLBACK AND CHAIN"}, Is: ErrTransactionEnded},
		"made read only":   {SQL: []string{"SET TRANSACTION READ ONLY"}, Is: ErrReadOnly, Says: "read-write"},
		"deferred":         {SQL: []string{"INSERT INTO " + b.Ledger + "_checked VALUES (1)"}, Is: store.ErrRolledBack, Says: "23503"},
		"connection ended": {SQL: []string{"SELECT pg_terminate_backend(pg_backend_pid())"}, Swallows: true, Is: store.ErrRolledBack},
		"another user":     {SQL: []string{"SET LOCAL ROLE pg_monitor"}, Is: ErrUnauthorized, Says: "README"},
	}
}

func TestTransactions(t *testing.T) {
	t.Parallel()
	for name := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqltest.Transactions(t, func(t *testing.T) *sqltest.Bank { return suiteBank(t, name) }, failing)
		})
	}
}

// TestKilled: processes are killed on the way from a claim to an answer.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"pgx", "sql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			sqltest.Killed(t, func(t *testing.T) *sqltest.Bank { return suiteBank(t, kind) }, func(b *sqltest.Bank) []string {
				return []string{kind, b.URL, b.Name}
			})
		})
	}
}

// beChild is what the test binary does as a child: a run, by a store of that URL and schema.
func beChild(args []string) error {
	ctx, kind, url, name := context.Background(), args[0], args[1], args[2]
	s, err := Open(ctx, url, &Options{Schema: name, Prefix: "in_" + name, PruneEvery: -1})
	if err != nil {
		return err
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	b := &bank{s: s, db: db, pool: pool}
	return sqltest.RunOnce(ctx, s, kinds[kind].transactor(b), name+".ledger", exec)
}
