package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/storetest"
)

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	if os.Getenv(childURL) != "" {
		beChild()
		return
	}
	flag.Parse()
	// Tests that are parallel mostly wait, for servers and for time.
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	code := m.Run()
	scope.Close()
	os.Exit(code)
}

// mariadb and mysqld are servers that outlive a busy machine. Whoever uses one has
// tables of its own, see ownPrefix.
var (
	mariadb = sync.OnceValue(func() *servertest.MariaDBServer {
		return servertest.MariaDB(scope, &servertest.MariaDBOptions{NoSync: true, MaxConnections: 600})
	})
	mysqld = sync.OnceValue(func() *servertest.MariaDBServer {
		return servertest.MariaDB(scope, &servertest.MariaDBOptions{MySQL: true, NoSync: true, MaxConnections: 600})
	})
)

var prefixes atomic.Int64

// ownPrefix returns a prefix that nobody else in this run has.
func ownPrefix() string { return fmt.Sprintf("own%d", prefixes.Add(1)) }

// openDB returns a pool of the application's.
func openDB(t testing.TB, url string) *sql.DB {
	t.Helper()
	config, _, err := parse(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// open opens a store as a process of its own would, with its tables. It ends with
// the test.
func open(t testing.TB, url string, o *Options) *Store {
	t.Helper()
	_, d, err := parse(url, o)
	if err != nil {
		t.Fatal(err)
	}
	// Not by Options.Migrate: on a busy machine it may take longer than Open does.
	db := openDB(t, url)
	if err := errors.Join(Migrate(t.Context(), db, d), db.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
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

// newClient returns a dibs client of the store; it ends with the test.
func newClient(t testing.TB, s dibs.Store, o *dibs.Options) *dibs.Client {
	t.Helper()
	c, err := dibs.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// restarts reports whether the property that is tried restarts its backend.
func restarts(t testing.TB) bool {
	return slices.ContainsFunc(storetest.Properties(), func(p storetest.Property) bool {
		return p.Name == path.Base(t.Name()) && slices.Contains(p.Needs, storetest.Restart)
	})
}

// work has two clients of the store do what clients do.
func work(t *testing.T, s *Store) {
	t.Helper()
	for i := range 8 {
		key := fmt.Sprint("key ", i)
		first, second := newClient(t, s, nil), newClient(t, s, nil)
		lease, err := first.Acquire(t.Context(), key, nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- second.Do(t.Context(), key, func(context.Context) error { return nil }) }()
		awaitQueue(t, s, key)
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		got, err := dibs.Once(t.Context(), first, "once "+key, nil, func(context.Context) (int, error) { return i, nil })
		if err != nil || got != i {
			t.Errorf("%d, %v", got, err)
		}
	}
}

// awaitQueue waits until somebody waits for a key.
func awaitQueue(t testing.TB, s *Store, key string) {
	t.Helper()
	eventually(t, 10*time.Second, "somebody waits for "+key, func() bool {
		answers := make([]dibs.Answer, 1)
		err := s.Claim(t.Context(), []dibs.Claim{{Key: dibs.Key{Name: key}, Mode: dibs.Look, Permits: 1}}, answers)
		return err == nil && answers[0].Ahead > 0
	})
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
