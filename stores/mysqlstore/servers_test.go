package mysqlstore

import (
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
)

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // tests cut its connections
	// Nothing is late because the machine pauses.
	openLimit, dialLimit = testkit.Limit, testkit.Limit
	testkit.Main(m, testkit.Children{"sqltest": beChild}, scope.Close)
}

// mariadb is the server of all tests that leave its settings alone. They have tables of
// their own, see testkit.Own.
var mariadb = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{NoSync: true, MaxConnections: 600})
})

// odd is a server with unusual settings. Users without SUPER get another character set.
var odd = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{NoSync: true, Settings: []string{
		"sql_mode = NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT",
		"character-set-server = gbk", "collation-server = gbk_chinese_ci", "init_connect = 'SET NAMES gbk'",
		"max_allowed_packet = 1M", "innodb_rollback_on_timeout = ON",
	}})
})

// servers are those on which the store works, but for the odd one. At night MySQL is one.
var servers = map[string]func() *servertest.MariaDBServer{"MariaDB": mariadb}

// onServers runs a test on each of them, at the same time.
func onServers(t *testing.T, test func(t *testing.T, server *servertest.MariaDBServer)) {
	t.Parallel()
	for name, get := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, get())
		})
	}
}

// serverOf returns the server of a case whose name begins with it; nil if it is none of
// those that are tried now.
func serverOf(name string) func() *servertest.MariaDBServer {
	kind, _, _ := strings.Cut(name, ",")
	return servers[kind]
}

// openDB returns a pool of the application's.
func openDB(t testing.TB, url string) *sql.DB {
	t.Helper()
	config, _, err := parse(url, nil)
	testkit.Must(t, err)
	c, err := mysql.NewConnector(config)
	testkit.Must(t, err)
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// open opens a store as a process of its own would, with its tables. It ends with
// the test.
func open(t testing.TB, url string, o *Options) *Store {
	t.Helper()
	_, d, err := parse(url, o)
	testkit.Must(t, err)
	// Not by Options.Migrate: on a busy machine it may take longer than Open does.
	db := openDB(t, url)
	testkit.Must(t, errors.Join(Migrate(t.Context(), db, d), db.Close()))
	s, err := Open(t.Context(), url, o)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, s.Close()) })
	return s
}

// drop drops the tables of a store.
func drop(server *servertest.MariaDBServer, prefix string) {
	var all []string
	for _, name := range tables {
		all = append(all, prefix+"_"+name)
	}
	server.Query("DROP TABLE " + strings.Join(all, ","))
}

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits
	conform(t, mariadb, servertest.MariaDBOptions{NoSync: true})
}

// conform checks all properties on the server that all share. Those that restart
// theirs have servers of their own.
func conform(t *testing.T, shared func() *servertest.MariaDBServer, own servertest.MariaDBOptions) {
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, turn time.Duration) *storetest.Subject {
			var server *servertest.MariaDBServer
			if storetest.Restarts(t) {
				server = servertest.MariaDB(t, &own)
			} else {
				server = shared()
			}
			o := &Options{Prefix: testkit.Own(), pushedTTL: turn}
			return &storetest.Subject{
				Open:    func() store.Store { return open(t, server.URL(), o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { drop(server, o.Prefix) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew: "it reads no clock of its process",
		},
	})
}

// NewDatabase returns the URL and the DSN of a database for one test.
func NewDatabase() (url, dsn string) {
	name := testkit.Own()
	mariadb().Query("CREATE DATABASE " + name)
	at := func(where string) string { return strings.Replace(where, "/app", "/"+name, 1) }
	return at(mariadb().URL()), at(mariadb().DSN())
}
