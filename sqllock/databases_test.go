package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// database is a kind of database with which the tests are run.
type database struct {
	d    Dialect
	open func(t testing.TB) *sql.DB
	// session is SQL that names the session, and kill ends one.
	session string
	kill    func(id int64) error
}

// databases are all of them. Nightly adds MySQL.
var databases = map[string]database{
	"postgres": {
		d: PostgreSQL, open: postgresDB, session: "SELECT pg_backend_pid()",
		kill: func(id int64) error {
			_, err := postgres().Do(fmt.Sprintf("SELECT pg_terminate_backend(%d)", id))
			return err
		},
	},
	"mariadb": {
		d: MariaDB, open: func(t testing.TB) *sql.DB { return mariadbDB(t, mariadb(), "") }, session: "SELECT CONNECTION_ID()",
		kill: func(id int64) error { return killMySQL(mariadb(), id) },
	},
	"sqlite": {d: SQLite, open: func(t testing.TB) *sql.DB { return sqliteDB(t, "") }},
}

// killMySQL ends a session, if there still is one.
func killMySQL(s *servertest.MariaDBServer, id int64) error {
	_, err := s.Do(fmt.Sprintf("KILL %d", id))
	if err != nil && strings.Contains(err.Error(), "Unknown thread") {
		return nil
	}
	return err
}

// onEach runs a test with each database.
func onEach(t *testing.T, test func(t *testing.T, b bench)) {
	t.Parallel()
	for name, base := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, bench{database: base, DB: base.open(t)})
		})
	}
}

// bench is a pool on a database of the test's own.
type bench struct {
	database
	*sql.DB
}

// sql writes the placeholders of a query, $1 and so on, in the database's own way.
// They have to come in their order.
func (b bench) sql(query string) string {
	if b.d == PostgreSQL {
		return query
	}
	return regexp.MustCompile(`\$[0-9]+`).ReplaceAllString(query, "?")
}

// must runs SQL that has to work.
func (b bench) must(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := b.ExecContext(t.Context(), b.sql(query), args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// number asks for a number.
func (b bench) number(t testing.TB, query string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := b.QueryRowContext(t.Context(), b.sql(query), args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// account is a row.
type account struct {
	ID, Balance, Version int64
}

// accounts makes the table with n rows, from 1, each with a balance of 100.
func (b bench) accounts(t testing.TB, n int) {
	t.Helper()
	b.must(t, "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, version BIGINT NOT NULL)")
	for id := range n {
		b.must(t, "INSERT INTO account (id, balance, version) VALUES ($1, 100, 1)", id+1)
	}
}

// accountOptions describes a row of it. Its version is raised and wanted as it was.
func (b bench) accountOptions() *RowOptions[account] {
	return &RowOptions[account]{
		Select: b.sql("SELECT id, balance, version FROM account WHERE id = $1"),
		Fields: func(a *account) []any { return []any{&a.ID, &a.Balance, &a.Version} },
		Update: b.sql("UPDATE account SET balance = $1, version = version + 1 WHERE id = $2 AND version = $3"),
		Values: func(a *account) []any { return []any{a.Balance, a.ID, a.Version} },
	}
}

func newRow[T any](t testing.TB, d Dialect, o *RowOptions[T]) *Row[T] {
	t.Helper()
	r, err := NewRow(d, o)
	testkit.Must(t, err)
	return r
}

// holdRow has a transaction lock a row of account until release is called.
func (b bench) holdRow(t testing.TB, id int64) (release func()) {
	t.Helper()
	o := b.accountOptions()
	locked, release1 := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	row := newRow(t, b.d, o)
	go func() {
		_, err := row.Update(context.Background(), b.DB, func(ctx context.Context, _ *sql.Tx, _ *account) error {
			close(locked)
			<-release1
			return nil
		}, id)
		done <- err
	}()
	select {
	case <-locked:
	case err := <-done:
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		close(release1)
		testkit.Check(t, <-done)
	})
	t.Cleanup(release)
	return release
}

// barrier lets n goroutines go on when all have arrived.
type barrier struct {
	left atomic.Int64
	open chan struct{}
}

func newBarrier(n int) *barrier {
	b := &barrier{open: make(chan struct{})}
	b.left.Store(int64(n))
	return b
}

func (b *barrier) wait(t testing.TB) {
	if b.left.Add(-1) == 0 {
		close(b.open)
	}
	select {
	case <-b.open:
	case <-time.After(testkit.Limit):
		t.Error("not all came to the barrier")
	}
}
