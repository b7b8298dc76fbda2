//go:build nightly

package fault_test

import (
	"context"
	"database/sql"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/target"
	"github.com/dibs-go/dibs/stores/anystore"
)

func newIdlers(t *testing.T) *idlers {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		testkit.Check(t, cmd.Wait())
	})
	return &idlers{cmd.Process.Pid}
}

// quiet connects through each wire, and says nothing.
func quiet(t *testing.T, wires []*wire.Wire) {
	t.Helper()
	for _, w := range wires {
		conn, err := net.Dial("tcp", w.Addr())
		testkit.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		testkit.Eventually(t, "a connection through the wire", func() bool { return w.Counts().Connections > 0 })
	}
}

// bitesAlways strikes where nothing happens, and returns how often the fault has hit: 0
// unless it does each time, as a server that answers late may have been stopped.
func bitesAlways(t *testing.T, f *fault.Fault, target *fault.Target, r *rand.Rand) (hits int) {
	t.Helper()
	for range 3 {
		var err error
		if hits, err = f.Strike(t.Context(), target, r); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if hits == 0 {
			return 0
		}
	}
	return hits
}

// What has not happened is not counted: a server that was not killed although a caller
// said so, a worker that paused and held nothing, a full disk that no worker noticed.
func TestCountsNothing(t *testing.T) {
	t.Parallel()
	redis := servertest.Redis(t, nil)
	postgres := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	mariadb := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
	etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "process_start_time_seconds 1\n")
	}))
	t.Cleanup(etcd.Close)
	for _, store := range []struct {
		name, url, addr string
		silent          []string // faults that hit although no process uses the store
	}{
		{"redis", redis.URL(), redis.Addr(), nil},
		{"postgres", postgres.URL(), postgres.Addr(), nil},
		{"mariadb", mariadb.URL(), mariadb.Addr(), nil},
		{"sqlite", target.SQLite(t, false).URL, "", []string{"file-lock"}},
	} {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			target := &fault.Target{URL: store.url, Workers: newIdlers(t), TTL: 100 * time.Millisecond}
			if store.addr != "" {
				s := &sham{store.addr, etcd.URL}
				target.Server, target.Failover, target.Clock, target.Manager = s, s, s, s
				var err error
				if target.Wires, _, err = fault.Through(store.url, 2); err != nil {
					t.Fatal(err)
				}
				quiet(t, target.Wires[1:])
				t.Cleanup(func() {
					for _, w := range target.Wires {
						testkit.Check(t, w.Close())
					}
				})
			}
			apply, _, err := fault.Select(target, "all")
			testkit.Must(t, err)
			r := rand.New(rand.NewPCG(3, 4))
			for _, f := range apply {
				if f.Name == "kill-connections" && store.name != "postgres" || slices.Contains(store.silent, f.Name) {
					continue // a connection that says nothing is one of these servers', all the same
				}
				if hits := bitesAlways(t, f, target, r); hits != 0 {
					t.Errorf("%s has hit %d times where nothing happened", f.Name, hits)
				}
			}
		})
	}
}

// Connections of others are left alone.
func TestOthers(t *testing.T) {
	t.Parallel()
	postgres := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	mariadb := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
	redis := servertest.Redis(t, nil)
	db, err := sql.Open("mysql", mariadb.DSN())
	testkit.Must(t, err)
	t.Cleanup(func() { db.Close() })
	theirMariaDB, err := db.Conn(t.Context())
	testkit.Must(t, err)
	theirPostgres, err := pgx.Connect(t.Context(), postgres.URL())
	testkit.Must(t, err)
	t.Cleanup(func() { theirPostgres.Close(context.Background()) })
	theirRedis, err := redis.Dial()
	testkit.Must(t, err)
	t.Cleanup(func() { theirRedis.Close() })
	for _, test := range []struct {
		name, url string
		ping      func() error
	}{
		{"postgres", postgres.URL() + "&migrate=true", func() error { return theirPostgres.Ping(t.Context()) }},
		{"mariadb", mariadb.URL() + "?migrate=true", func() error { return theirMariaDB.PingContext(t.Context()) }},
		{"redis", redis.URL(), func() error { _, err := theirRedis.Do("PING"); return err }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wires, urls, err := fault.Through(test.url, 1)
			testkit.Must(t, err)
			t.Cleanup(func() { wires[0].Close() })
			store, err := anystore.Open(t.Context(), urls[0], anystore.ToUse)
			testkit.Must(t, err)
			t.Cleanup(func() { store.Close() })
			target := &fault.Target{URL: test.url, Wires: wires}
			apply, _, err := fault.Select(target, "kill-connections")
			if err != nil || len(apply) != 1 {
				t.Fatal(apply, err)
			}
			r := rand.New(rand.NewPCG(5, 6))
			hits, err := apply[0].Strike(t.Context(), target, r)
			testkit.Must(t, err)
			if hits == 0 {
				t.Error("none of the run's own connections was ended")
			}
			if err := test.ping(); err != nil {
				t.Errorf("the connection of another program: %v", err)
			}
		})
	}
}
