package sqllock

import (
	"cmp"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
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
