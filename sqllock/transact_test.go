package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// A transaction that is given up for another one runs again, and ends well.
func TestTransactRetries(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 2)
		both := newBarrier(2)
		var mu sync.Mutex
		runs := 0
		var wg sync.WaitGroup
		for _, ids := range [][]int64{{1, 2}, {2, 1}} {
			wg.Go(func() {
				first := true
				err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
					mu.Lock()
					runs++
					mu.Unlock()
					for _, id := range ids {
						if _, err := tx.ExecContext(ctx, b.sql("UPDATE account SET balance = balance + 1 WHERE id = $1"), id); err != nil {
							return err
						}
						if first && b.d != SQLite { // where the second one cannot come before the first is done
							both.wait(t)
						}
						first = false
					}
					return nil
				})
				testkit.Check(t, err)
			})
		}
		wg.Wait()
		if got := b.number(t, "SELECT SUM(balance) FROM account"); got != 204 {
			t.Errorf("the balances are %d; want 204", got)
		}
		if want := 3; b.d != SQLite && runs < want {
			t.Errorf("%d runs; want %d", runs, want)
		}
	})
}

func TestTransactSerializable(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 2)
		o := &TransactOptions{Isolation: sql.LevelSerializable, MaxTries: 1000}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				err := Transact(t.Context(), b.d, b.DB, o, func(ctx context.Context, tx *sql.Tx) error {
					var balance int64
					if err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 1").Scan(&balance); err != nil {
						return err
					}
					_, err := tx.ExecContext(ctx, b.sql("UPDATE account SET balance = $1 WHERE id = 1"), balance+1)
					return err
				})
				testkit.Check(t, err)
			})
		}
		wg.Wait()
		if got := b.number(t, "SELECT balance FROM account WHERE id = 1"); got != 108 {
			t.Errorf("the balance is %d; want 108", got)
		}
	})
}

// Whatever way fn ends but well, nothing of it stays, and the connection is as good as
// new.
func TestTransactWaysOut(t *testing.T) {
	own := errors.New("fn's own")
	for name, c := range map[string]struct {
		end  func(cancel func(), tx *sql.Tx) error
		want string // of the error; "" for those that never return
	}{
		"error":    {func(func(), *sql.Tx) error { return own }, "fn's own"},
		"panic":    {func(func(), *sql.Tx) error { panic(own) }, ""},
		"Goexit":   {func(func(), *sql.Tx) error { runtime.Goexit(); return nil }, ""},
		"cancel":   {func(cancel func(), _ *sql.Tx) error { cancel(); return nil }, "nothing was committed: context canceled"},
		"rollback": {func(_ func(), tx *sql.Tx) error { return tx.Rollback() }, "fn ended the transaction"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, b bench) {
				b.accounts(t, 1)
				b.SetMaxOpenConns(1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var err error
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() { _ = recover() }()
					err = Transact(ctx, b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
						if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = 7"); err != nil {
							t.Error(err)
						}
						return c.end(cancel, tx)
					})
				})
				wg.Wait()
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || errors.Is(err, ErrUnknown) {
					t.Errorf("it ends with %v", err)
				}
				if got := b.number(t, "SELECT balance FROM account"); got != 100 {
					t.Errorf("the balance is %d", got)
				}
				b.must(t, "UPDATE account SET balance = 1") // by others
			})
		})
	}
}

// A commit without an answer may have happened, and is not tried again.
func TestTransactUnknown(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		if b.kill == nil {
			return // no session that could be ended
		}
		b.accounts(t, 1)
		runs := 0
		err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			runs++
			if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = 7"); err != nil {
				return err
			}
			var id int64
			if err := tx.QueryRowContext(ctx, b.session).Scan(&id); err != nil {
				return err
			}
			return b.kill(id)
		})
		if !errors.Is(err, ErrUnknown) || runs != 1 {
			t.Errorf("after %d runs: %v", runs, err)
		}
	})
}

// An error that fn keeps to itself makes PostgreSQL roll back, and Transact reports that.
func TestTransactSwallows(t *testing.T) {
	t.Parallel()
	b := bench{database: databases["postgres"], DB: postgresDB(t)}
	b.accounts(t, 1)
	err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = 7"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO account VALUES (1, 1, 1)"); err == nil {
			t.Error("there are two rows with one key")
		}
		return nil
	})
	if err == nil || errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if got := b.number(t, "SELECT balance FROM account"); got != 100 {
		t.Errorf("the balance is %d", got)
	}
}

// What a deferred constraint refuses was not committed, for certain.
func TestTransactRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postgres", "sqlite"} { // the others have no such thing
		base := databases[name]
		b := bench{database: base, DB: base.open(t)}
		if b.d == SQLite {
			b.DB = sqliteDB(t, "_pragma=foreign_keys(1)")
		}
		b.must(t, "CREATE TABLE one (id BIGINT PRIMARY KEY)")
		b.must(t, "CREATE TABLE many (id BIGINT REFERENCES one DEFERRABLE INITIALLY DEFERRED)")
		err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO many VALUES (1)")
			return err
		})
		if err == nil || errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.number(t, "SELECT COUNT(*) FROM many"); got != 0 {
			t.Errorf("%s: %d rows", name, got)
		}
	}
}

func TestTransactOptions(t *testing.T) {
	t.Parallel()
	db := sqliteDB(t, "")
	fn := func(context.Context, *sql.Tx) error { t.Error("fn runs"); return nil }
	if err := Transact(t.Context(), SQLite, db, &TransactOptions{MaxTries: -1}, fn); err == nil || !strings.Contains(err.Error(), "TransactOptions.MaxTries") {
		t.Error(err)
	}
	if err := Transact(t.Context(), 0, db, nil, fn); err == nil || !strings.Contains(err.Error(), "dialect") {
		t.Error(err)
	}
}

// SQLite's transactions have the lock from their beginning, whatever the driver was
// reported, and two that read first do not block each other.
func TestTransactImmediate(t *testing.T) {
	t.Parallel()
	for _, parameters := range []string{
		"_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)", "_txlock=immediate&_pragma=journal_mode(WAL)",
		"_pragma=busy_timeout(0)", "_txlock=exclusive",
	} {
		b := bench{database: database{d: SQLite}, DB: sqliteDB(t, parameters)}
		b.accounts(t, 1)
		wal := strings.HasSuffix(parameters, "(WAL)")
		o := &TransactOptions{MaxTries: 1}
		if !wal { // a commit may meet a reader
			o.MaxTries = 1000
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 5 {
					runs := 0
					err := Transact(t.Context(), SQLite, b.DB, o, func(ctx context.Context, tx *sql.Tx) error {
						runs++
						var balance int64
						if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&balance); err != nil {
							return err
						}
						_, err := tx.ExecContext(ctx, "UPDATE account SET balance = $1", balance+1)
						return err
					})
					if err != nil || runs != 1 && wal {
						t.Errorf("%q: after %d runs: %v", parameters, runs, err)
					}
				}
			})
		}
		wg.Wait()
		if got := b.number(t, "SELECT balance FROM account"); got != 120 {
			t.Errorf("%q: the balance is %d; want 120", parameters, got)
		}
	}
}

// stateError is an error with an SQLSTATE, as lib/pq and pgx return it.
type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// codeError is how SQLite's driver does.
type codeError int

func (e codeError) Error() string { return fmt.Sprintf("code %d", int(e)) }
func (e codeError) Code() int     { return int(e) }

func mysqlError(number uint16) error { return &mysql.MySQLError{Number: number} }

// What may be tried again, and what may have been committed.
func TestConflicts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d                        Dialect
		err                      error
		conflicted, notCommitted bool
	}{
		{PostgreSQL, stateError("40001"), true, true},
		{PostgreSQL, stateError("40P01"), true, true},
		{PostgreSQL, stateError("23505"), false, true},
		{PostgreSQL, stateError("25P02"), false, true},
		{PostgreSQL, stateError("P0001"), false, true},
		{PostgreSQL, stateError("40003"), false, false}, // it does not know
		{PostgreSQL, stateError("57P01"), false, false}, // may come after the commit
		{PostgreSQL, stateError("08006"), false, false},
		{PostgreSQL, stateError("XX000"), false, false},
		{PostgreSQL, stateError(""), false, false},
		{PostgreSQL, mysqlError(1213), false, false},
		{MySQL, mysqlError(1213), true, true},
		{MySQL, mysqlError(1205), true, true},
		{MariaDB, mysqlError(1020), true, true},
		{MySQL, mysqlError(1053), false, false},
		{MySQL, mysqlError(1317), false, false},
		{MySQL, mysql.ErrInvalidConn, false, false},
		{SQLite, codeError(5), true, true},
		{SQLite, codeError(517), true, true},
		{SQLite, codeError(6), true, true},
		{SQLite, codeError(787), false, true}, // a foreign key
		{SQLite, codeError(13), false, true},
		{SQLite, codeError(10), false, false},
		{SQLite, io.ErrUnexpectedEOF, false, false},
		{PostgreSQL, pgx.ErrTxCommitRollback, false, true},
		{PostgreSQL, context.Canceled, false, false},
		{MariaDB, &RowHeldError{Err: mysqlError(1205)}, false, false}, // was asked for
		{SQLite, nil, false, false},
	} {
		wrapped := fmt.Errorf("wrapped: %w", c.err)
		if got := c.d.Conflicted(wrapped); got != c.conflicted {
			t.Errorf("%v: %v is a conflict: %v", c.d, c.err, got)
		}
		if _, held := errors.AsType[*RowHeldError](c.err); held {
			continue // no answer to a commit
		}
		if got := c.d.notCommitted(wrapped); got != c.notCommitted {
			t.Errorf("%v: %v says that nothing was committed: %v", c.d, c.err, got)
		}
	}
}

func TestIdentifiers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, postgres, others string }{
		{"account", `"account"`, "`account`"},
		{"Account", `"Account"`, "`Account`"},
		{"shop.account", `"shop"."account"`, "`shop`.`account`"},
		{"order", `"order"`, "`order`"},
		{`a"b`, `"a""b"`, "`a\"b`"},
		{"a`b", "\"a`b\"", "`a``b`"},
		{"x; DROP TABLE account; --", `"x; DROP TABLE account; --"`, "`x; DROP TABLE account; --`"},
		{"größe", `"größe"`, "`größe`"},
		{strings.Repeat("x", 64), "", "`" + strings.Repeat("x", 64) + "`"},
		{strings.Repeat("x", 65), "", ""},
		{"", "", ""},
		{".account", "", ""},
		{"shop.", "", ""},
		{"a.b.c", "", ""},
		{"a\x00b", "", ""},
		{"a\nb", "", ""},
		{"a ", "", ""},
		{"a\xff", "", ""},
	} {
		for _, d := range []Dialect{PostgreSQL, MySQL, MariaDB, SQLite} {
			want := c.others
			if d == PostgreSQL {
				want = c.postgres
			}
			got, err := d.table("Options.Table", c.name)
			if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "Options.Table is ") {
				t.Errorf("%v: %q is written %s, %v; want %s", d, c.name, got, err, want)
			}
		}
	}
}

// A quoted name means what has the name, and no text, not even where it is missing.
func TestIdentifiersMeanNothingElse(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 1)
		for _, name := range []string{`a"b`, "a`b", "select", "Tab Le", `'; DROP TABLE x; --`, `\`, "%s", "$1", "?"} {
			quoted, err := b.d.identifier("the name", name)
			testkit.Must(t, err)
			if _, err := b.ExecContext(t.Context(), "CREATE TABLE "+quoted+" (id BIGINT PRIMARY KEY)"); err != nil {
				t.Errorf("%s: %v", quoted, err)
			}
			if _, err := b.ExecContext(t.Context(), "SELECT "+quoted+" FROM account"); err == nil {
				t.Errorf("the column %s is missing, and read", quoted)
			}
			var n int
			if err := b.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+quoted).Scan(&n); err != nil || n != 0 {
				t.Errorf("%s has %d rows, %v", quoted, n, err)
			}
		}
	})
}

func TestDialectString(t *testing.T) {
	t.Parallel()
	for d, want := range map[Dialect]string{PostgreSQL: "PostgreSQL", MySQL: "MySQL", MariaDB: "MariaDB", SQLite: "SQLite", 9: "Dialect(9)"} {
		if got := d.String(); got != want {
			t.Errorf("%s; want %s", got, want)
		}
		if err := d.validate(); (err == nil) != (d < 9) {
			t.Errorf("%v: %v", d, err)
		}
	}
}
