package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs"
)

// bank is an application: a ledger, in the database in which the keys are too.
type bank struct {
	s      *Store
	client *dibs.Client
	pool   *pgxpool.Pool
	db     *sql.DB
	ledger string // its table
}

// newBank opens a bank with a store of its own. What its connections are like is in
// the URL.
func newBank(t testing.TB, url string, o *Options) *bank {
	t.Helper()
	if o == nil {
		o = &Options{}
	}
	mine := ownNames()
	o.Schema, o.Prefix = mine.Schema, mine.Prefix
	b := &bank{s: open(t, url, o), ledger: o.Schema + ".ledger"}
	b.client = newClient(t, b.s, nil)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if b.s.pooled.Load() {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if b.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.pool.Close)
	if b.s.pooled.Load() {
		url += "&default_query_exec_mode=exec"
	}
	if b.db, err = sql.Open("pgx", url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.db.Close() })
	if _, err := b.pool.Exec(t.Context(), "CREATE TABLE "+b.ledger+" (what text NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return b
}

// writer writes into the ledger, in a transaction of either kind.
type writer struct {
	exec func(ctx context.Context, sql string) error
}

// once runs fn in a transaction of a Transactor of either kind.
func once(ctx context.Context, c *dibs.Client, tr dibs.Transactor, key string, o *dibs.OnceOptions, fn func(context.Context, *writer) (string, error)) (string, error) {
	if _, ok := tr.(*sqlTransactor); ok {
		return OnceSQL(ctx, c, tr, key, o, func(ctx context.Context, tx *sql.Tx) (string, error) {
			return fn(ctx, &writer{exec: func(ctx context.Context, sql string) error {
				_, err := tx.ExecContext(ctx, sql)
				return err
			}})
		})
	}
	return OnceTx(ctx, c, tr, key, o, func(ctx context.Context, tx pgx.Tx) (string, error) {
		return fn(ctx, &writer{exec: func(ctx context.Context, sql string) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}})
	})
}

// book makes an entry, in a run of its own.
func (b *bank) book(ctx context.Context, tr dibs.Transactor, key string) (string, error) {
	return once(ctx, b.client, tr, key, nil, func(ctx context.Context, w *writer) (string, error) {
		return "booked " + key, w.exec(ctx, b.entry(key))
	})
}

// entry is the statement that makes an entry.
func (b *bank) entry(what string) string {
	return fmt.Sprintf("INSERT INTO %s VALUES ('%s')", b.ledger, what)
}

// entries counts those of that name.
func (b *bank) entries(t testing.TB, what string) (n int) {
	t.Helper()
	if err := b.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+b.ledger+" WHERE what = $1", what).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// kinds are the Transactors that there are, by what they go through.
var kinds = map[string]struct {
	pooled     bool
	transactor func(*bank) dibs.Transactor
}{
	"pgx":            {false, func(b *bank) dibs.Transactor { return b.s.Transactions(b.pool, nil) }},
	"sql":            {false, func(b *bank) dibs.Transactor { return b.s.SQLTransactions(b.db, nil) }},
	"pgx, PgBouncer": {true, func(b *bank) dibs.Transactor { return b.s.Transactions(b.pool, nil) }},
	"sql, PgBouncer": {true, func(b *bank) dibs.Transactor { return b.s.SQLTransactions(b.db, nil) }},
	"pgx, repeatable": {false, func(b *bank) dibs.Transactor {
		return b.s.Transactions(b.pool, &pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	}},
	"sql, serializable": {false, func(b *bank) dibs.Transactor {
		return b.s.SQLTransactions(b.db, &sql.TxOptions{Isolation: sql.LevelSerializable})
	}},
}

// inEachKind runs a test with each Transactor there is.
func inEachKind(t *testing.T, test func(t *testing.T, b *bank, tr dibs.Transactor)) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := shared().URL()
			if kind.pooled {
				url = sharedPooler().URL()
			}
			b := newBank(t, url, nil)
			test(t, b, kind.transactor(b))
		})
	}
}

// TestTransaction: what is done and its answer are there together, once, whoever
// asks.
func TestTransaction(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr dibs.Transactor) {
		watchLocks(t)
		answers := make(chan string, 16)
		other := newClient(t, b.s, nil)
		for i := range cap(answers) {
			client := b.client
			if i%2 == 0 {
				client = other
			}
			go func() {
				got, err := once(t.Context(), client, tr, "k", nil, func(ctx context.Context, w *writer) (string, error) {
					return fmt.Sprint("answer ", i), w.exec(ctx, b.entry("k"))
				})
				if err != nil {
					t.Error(err)
				}
				answers <- got
			}()
		}
		first := <-answers
		for range cap(answers) - 1 {
			if got := <-answers; got != first {
				t.Errorf("answered %q and %q", first, got)
			}
		}
		if n := b.entries(t, "k"); n != 1 {
			t.Errorf("%d entries, want 1", n)
		}
	})
}

// TestTransactionFails: a run that fails has done nothing, and the next one runs.
func TestTransactionFails(t *testing.T) {
	boom := errors.New("boom")
	inEachKind(t, func(t *testing.T, b *bank, tr dibs.Transactor) {
		if _, err := b.pool.Exec(t.Context(), fmt.Sprintf(`CREATE TABLE %[1]s_other (id int PRIMARY KEY);
			CREATE TABLE %[1]s_checked (id int REFERENCES %[1]s_other DEFERRABLE INITIALLY DEFERRED)`, b.ledger), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		// runs is what a run does after it has made its entry: a statement, of which the
		// error is returned or not.
		for name, run := range map[string]struct {
			sql      string
			swallows bool
			err      error // of the function
			is       error
			says     string
		}{
			"error":            {err: boom, is: boom},
			"constraint":       {sql: "INSERT INTO " + b.ledger + " VALUES (NULL)", says: "23502"},
			"timeout":          {sql: "SET LOCAL statement_timeout = '1ms'; SELECT pg_sleep(1)", says: "57014"},
			"swallowed":        {sql: "SELECT 1/0", swallows: true, is: ErrAborted},
			"rolled back":      {sql: "ROLLBACK", is: ErrEnded},
			"begun anew":       {sql: "ROLLBACK; BEGIN", is: ErrEnded},
			"chained":          {sql: "ROLLBACK AND CHAIN", is: ErrEnded},
			"made read only":   {sql: "SET TRANSACTION READ ONLY", is: ErrReadOnly, says: "read-write"},
			"deferred":         {sql: "INSERT INTO " + b.ledger + "_checked VALUES (1)", is: dibs.ErrRolledBack, says: "23503"},
			"connection ended": {sql: "SELECT pg_terminate_backend(pg_backend_pid())", swallows: true, is: dibs.ErrRolledBack},
			"another user":     {sql: "SET LOCAL ROLE pg_monitor", is: ErrUnauthorized, says: "README"},
		} {
			ran := 0
			_, err := once(t.Context(), b.client, tr, name, nil, func(ctx context.Context, w *writer) (string, error) {
				ran++
				if err := w.exec(ctx, b.entry(name)); err != nil {
					return "", err
				}
				if run.sql != "" {
					if err := w.exec(ctx, run.sql); err != nil && !run.swallows {
						return "", err
					}
				}
				return "wrong", run.err
			})
			if err == nil || ran != 1 || run.is != nil && !errors.Is(err, run.is) || !strings.Contains(err.Error(), run.says) {
				t.Errorf("%s: after %d runs: %v; want %v and %q", name, ran, err, run.is, run.says)
			}
			if n := b.entries(t, name); n != 0 {
				t.Errorf("%s: %d entries are there", name, n)
			}
			if got, err := b.book(t.Context(), tr, name); err != nil || got != "booked "+name {
				t.Errorf("%s: then %q, %v", name, got, err)
			}
			if n := b.entries(t, name); n != 1 {
				t.Errorf("%s: then %d entries are there", name, n)
			}
		}
	})
}
