package sqllock

import (
	"cmp"
	"database/sql"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/dibs-go/dibs/internal/servertest"
)

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests that are parallel mostly wait, for servers and for time.
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	// Connections that end are what some tests are about.
	if err := mysql.SetLogger(&mysql.NopLogger{}); err != nil {
		panic(err)
	}
	code := m.Run()
	scope.Close()
	if left := leftovers(); left != "" && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
		code = 1
	}
	os.Exit(code)
}

// leftovers returns the stacks of this package's goroutines, other than the one that
// asks, that do not end.
func leftovers() string {
	var left []string
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 500 {
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
		<-tick.C
	}
	return strings.Join(left, "\n\n")
}

// postgres is a server that outlives a busy machine. Whoever uses it has names, a
// schema or a database of its own, see own and postgresDB.
var postgres = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 500})
})

// pooler is a PgBouncer in transaction mode before it.
var pooler = sync.OnceValue(func() *servertest.PgBouncerServer {
	return servertest.PgBouncer(scope, postgres(), &servertest.PgBouncerOptions{PoolSize: 20})
})

// mariadb is a server of MariaDB; as with postgres, for all.
var mariadb = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{NoSync: true, MaxConnections: 500})
})

// mysql8 is a server of MySQL; as with postgres, for all.
var mysql8 = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{MySQL: true, NoSync: true, MaxConnections: 500})
})

var owned atomic.Int64

// own returns a name that nobody else in this run has.
func own() string { return fmt.Sprintf("own%d", owned.Add(1)) }

// openDB opens a pool; it ends with the test.
func openDB(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// postgresDB opens a pool on a schema of the test's own, on the shared server.
func postgresDB(t testing.TB) *sql.DB {
	t.Helper()
	schema := own()
	db := openDB(t, "pgx", withParameter(postgres().URL(), "search_path", schema))
	if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	return db
}

// mariadbDB opens a pool on a database of the test's own, on the shared server.
// The driver's parameters may be "".
func mariadbDB(t testing.TB, parameters string) *sql.DB {
	t.Helper()
	database := own()
	mariadb().Query("CREATE DATABASE " + database)
	return openDB(t, "mysql", "root@tcp("+mariadb().Addr()+")/"+database+"?"+parameters)
}

// sqliteDB opens a pool on a file of the test's own. The driver's parameters may be
// "": then it is in WAL mode and waits 5 s for others.
func sqliteDB(t testing.TB, parameters string) *sql.DB {
	t.Helper()
	parameters = cmp.Or(parameters, "_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")
	return openDB(t, "sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+"?"+parameters)
}

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

// eventually waits until something is so.
func eventually(t testing.TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-tick.C
	}
}
