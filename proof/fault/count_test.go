package fault_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/victim"
)

// idlers are workers of whom none does anything: processes that do not use the store.
type idlers struct{ pid int }

func newIdlers(t *testing.T) *idlers {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &idlers{cmd.Process.Pid}
}

func (i *idlers) Len() int                    { return 1 }
func (i *idlers) PID(int) int                 { return i.pid }
func (i *idlers) Kill(int) (bool, error)      { return false, nil }
func (i *idlers) Restart(int, []string) error { return nil }
func (i *idlers) Lost(int) int                { return 0 }
func (i *idlers) Failed(string) int           { return 0 }
func (i *idlers) Stop(ctx context.Context, _ int, d time.Duration) (bool, error) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return true, nil
}

// sham is a server, a replica and a clock to which nothing can be done.
type sham struct{ addr string }

func (*sham) Kill()                             {}
func (*sham) Restart()                          {}
func (*sham) Pause()                            {}
func (*sham) Continue()                         {}
func (*sham) Lag() error                        { return nil }
func (*sham) Rebuild() error                    { return nil }
func (*sham) Step(time.Duration) error          { return nil }
func (s *sham) Promote() (string, int64, error) { return s.addr, 0, nil }

// quiet connects through each wire, and says nothing.
func quiet(t *testing.T, wires []*fault.Wire) {
	t.Helper()
	for _, w := range wires {
		conn, err := net.Dial("tcp", w.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		waitFor(t, "a connection through the wire", func() bool { return w.Counts().Connections > 0 })
	}
}

// bitesAlways strikes where nothing happens, and returns how often the fault has bitten: 0
// unless it does each time, as a server that answers late may have been stopped.
func bitesAlways(t *testing.T, f *fault.Fault, target *fault.Target, r *rand.Rand) (bites int) {
	t.Helper()
	for range 3 {
		var err error
		if bites, err = f.Strike(t.Context(), target, r); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if bites == 0 {
			return 0
		}
	}
	return bites
}

func waitFor(t *testing.T, what string, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !there(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there is not %s", what)
		}
	}
}

// What has not happened is not counted: a server that was not killed although somebody said
// so, a worker that stood still and held nothing, a full disk that nobody noticed.
func TestCountsNothing(t *testing.T) {
	t.Parallel()
	redis := servertest.Redis(t, &servertest.RedisOptions{Directives: []string{"maxclients 50"}})
	postgres := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true, MaxConnections: 30})
	mariadb := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true, MaxConnections: 30})
	for _, store := range []struct {
		name, url, addr string
		silent          []string // faults that bite without anybody who uses the store
	}{
		{"redis", redis.URL(), redis.Addr(), nil},
		{"postgres", postgres.URL(), postgres.Addr(), nil},
		{"mariadb", mariadb.URL(), mariadb.Addr(), nil},
		{"sqlite", victim.SQLite(t, false).URL, "", []string{"file-lock"}},
	} {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			target := &fault.Target{URL: store.url, Workers: newIdlers(t), TTL: 100 * time.Millisecond}
			if store.addr != "" {
				s := &sham{store.addr}
				target.Server, target.Failover, target.Clock = s, s, s
				var err error
				if target.Wires, _, err = fault.Through(store.url, 2); err != nil {
					t.Fatal(err)
				}
				quiet(t, target.Wires[1:])
				t.Cleanup(func() {
					for _, w := range target.Wires {
						if err := w.Close(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			apply, _, err := fault.Select(target, "all")
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(3, 4))
			for _, f := range apply {
				if f.Name == "kill-connections" && store.name != "postgres" || slices.Contains(store.silent, f.Name) {
					continue // a connection that says nothing is one of these servers', all the same
				}
				if bites := bitesAlways(t, f, target, r); bites != 0 {
					t.Errorf("%s has bitten %d times where nothing happened", f.Name, bites)
				}
			}
		})
	}
}

// A server notices late that a crowd has left. Who looks at it waits for that.
func TestLooksWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		server := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true, MaxConnections: 10})
		db, err := sql.Open("mysql", server.DSN())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		db.SetMaxIdleConns(0)
		looksPastCrowd(t, server.URL(), server.Addr(), func() (io.Closer, error) { return db.Conn(t.Context()) })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t, &servertest.RedisOptions{Directives: []string{"maxclients 10"}})
		looksPastCrowd(t, server.URL(), server.Addr(), func() (io.Closer, error) {
			conn, err := server.Dial()
			if err != nil {
				return nil, err
			}
			if _, err := conn.Do("PING"); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return conn, nil
		})
	})
}

// looksPastCrowd has a fault look at a server that a crowd leaves meanwhile.
func looksPastCrowd(t *testing.T, url, addr string, dial func() (io.Closer, error)) {
	t.Helper()
	var crowd []io.Closer
	var full error
	for full == nil && len(crowd) <= 20 {
		var conn io.Closer
		if conn, full = dial(); full == nil {
			crowd = append(crowd, conn)
		}
	}
	if full == nil {
		t.Fatalf("the server has taken %d connections", len(crowd))
	}
	target := &fault.Target{URL: url, Workers: newIdlers(t), TTL: 100 * time.Millisecond, Server: &sham{addr}}
	apply, _, err := fault.Select(target, "server-stop")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() {
		for _, conn := range crowd {
			conn.Close()
		}
	})
	if bites := bitesAlways(t, apply[0], target, rand.New(rand.NewPCG(1, 2))); bites != 0 {
		t.Errorf("server-stop has bitten %d times", bites)
	}
}

// Connections of others are left alone.
func TestOthers(t *testing.T) {
	t.Parallel()
	postgres := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	mariadb := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
	redis := servertest.Redis(t, nil)
	db, err := sql.Open("mysql", mariadb.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	theirMariaDB, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirPostgres, err := pgx.Connect(t.Context(), postgres.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirPostgres.Close(context.Background()) })
	theirRedis, err := redis.Dial()
	if err != nil {
		t.Fatal(err)
	}
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
			target := &fault.Target{URL: test.url}
			newCrew(t, target, 1)
			apply, _, err := fault.Select(target, "kill-connections")
			if err != nil || len(apply) != 1 {
				t.Fatal(apply, err)
			}
			r := rand.New(rand.NewPCG(5, 6))
			bites := 0
			for range 5 {
				n, err := apply[0].Strike(t.Context(), target, r)
				if err != nil {
					t.Fatal(err)
				}
				bites += n
			}
			if bites == 0 {
				t.Error("none of the run's own connections was ended")
			}
			if err := test.ping(); err != nil {
				t.Errorf("the connection of somebody else: %v", err)
			}
		})
	}
}
