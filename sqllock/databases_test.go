package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

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

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // connections that end are what some tests are about
	// Nothing is late because the machine pauses.
	answerLimit, connectLimit = testkit.Limit/2, testkit.Limit/2
	testkit.Main(m, children, scope.Close, func() {
		if left := leftovers(); left != "" {
			fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
			os.Exit(1)
		}
	})
}

// leftovers returns the stacks of this package's goroutines that do not end. The
// goroutine that asks is not one of them.
func leftovers() string {
	var left []string
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < testkit.Limit; <-tick.C {
		left = left[:0]
		stacks := make([]byte, 8<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for i, stack := range strings.Split(string(stacks), "\n\n") {
			if i > 0 && strings.Contains(stack, "dibs/sqllock.") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}

// postgres is the server of all tests, apart from those that restart or break theirs.
// Each test has names, a schema or a database of its own: see own and postgresDB.
var postgres = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{
		NoSync: true, MaxConnections: 500,
		// Tests with a circle need not wait for the usual second.
		Settings: []string{"deadlock_timeout = 100ms"},
	})
})

// mariadb is the MariaDB of all tests.
var mariadb = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{NoSync: true, MaxConnections: 500})
})

// SharedPostgres and SharedMariaDB are for the examples, which are in a package of their own.
func SharedPostgres() string { return postgres().URL() }

// SharedMariaDB returns the name under which the driver finds mariadb.
func SharedMariaDB() string { return mariadb().DSN() }

// owned counts the numbers that tests have had for themselves.
var owned atomic.Int64

// openDB opens a pool; it ends with the test.
func openDB(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, db.Close()) })
	return db
}

// postgresDB opens a pool on a schema of the test's own, on the shared server.
func postgresDB(t testing.TB) *sql.DB {
	t.Helper()
	schema := testkit.Own()
	db := openDB(t, "pgx", withParameter(postgres().URL(), "search_path", schema))
	if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	return db
}

// mariadbDB opens a pool on a database of the test's own, on that server. The driver's
// parameters may be "".
func mariadbDB(t testing.TB, server *servertest.MariaDBServer, parameters string) *sql.DB {
	t.Helper()
	return openDB(t, "mysql", ownDSN(server)+"?"+parameters)
}

// ownDSN makes a database of the test's own, and returns the way to it.
func ownDSN(server *servertest.MariaDBServer) string {
	database := testkit.Own()
	server.Query("CREATE DATABASE " + database)
	return "root@tcp(" + server.Addr() + ")/" + database
}

// sqliteDB opens a pool on a file of the test's own. The driver's parameters may be
// "": then it is in WAL mode and waits for other connections.
func sqliteDB(t testing.TB, parameters string) *sql.DB {
	t.Helper()
	return openDB(t, "sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+"?"+cmp.Or(parameters, patient))
}

// patient are parameters with which SQLite waits until a test would be said to hang.
const patient = "_pragma=journal_mode(WAL)&_pragma=busy_timeout(60000)"

// withParameter adds a parameter to a URL.
func withParameter(rawURL, name, value string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// fakeServer is a database whose answers come when the test wants them to.
type fakeServer struct {
	query  func(sql string, args []driver.NamedValue) ([]driver.Value, error) // one row
	exec   func(sql string) error
	closed func() // if not nil: a session ends
}

// open opens a pool on it.
func (s *fakeServer) open(t *testing.T) *sql.DB {
	t.Helper()
	db := sql.OpenDB(s)
	t.Cleanup(func() { testkit.Check(t, db.Close()) })
	return db
}

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) { return &fakeConn{s}, nil }
func (s *fakeServer) Driver() driver.Driver                        { return nil }

type fakeConn struct{ *fakeServer }

var errFake = errors.New("the fake server has no such thing")

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errFake }
func (c *fakeConn) Begin() (driver.Tx, error)           { return fakeTx{}, nil }

func (c *fakeConn) Close() error {
	if c.closed != nil {
		c.closed()
	}
	return nil
}

func (c *fakeConn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	row, err := c.query(query, args)
	return &fakeRow{row}, err
}

func (c *fakeConn) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), c.exec(query) // which knows no LastInsertId
}

type fakeTx struct{}

func (fakeTx) Commit() error   { return nil }
func (fakeTx) Rollback() error { return nil }

type fakeRow struct{ row []driver.Value }

func (r *fakeRow) Columns() []string { return make([]string, len(r.row)) }
func (r *fakeRow) Close() error      { return nil }

func (r *fakeRow) Next(into []driver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	copy(into, r.row)
	r.row = nil
	return nil
}
