package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// others are the sessions of a server but for the command line client's.
const others = "SELECT id FROM information_schema.processlist WHERE user='root' AND host LIKE '127.0.0.1%'"

// TestLostConnections: a connection that was ended while nothing happened on it is
// no failure of the next call.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]servertest.MariaDBOptions{"MariaDB": {NoSync: true}, "MySQL": {MySQL: true, NoSync: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.MariaDB(t, &o)
			s := open(t, server.URL(), &Options{PruneEvery: -1})
			c := newClient(t, s, nil)
			end := func() {
				for _, row := range server.Query(others) {
					_, _ = server.Do("KILL " + row[0])
				}
				eventually(t, 10*time.Second, "they are gone", func() bool { return len(server.Query(others)) == 0 })
			}
			for i := range 5 {
				lease, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{NoWait: true})
				if err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
				end()
				if err := lease.Save(t.Context(), []byte("half")); err != nil {
					t.Fatalf("round %d: save: %v", i, err)
				}
				end()
				if err := lease.Release(); err != nil {
					t.Fatalf("round %d: release: %v", i, err)
				}
				end()
			}
		})
	}
}

// TestRenewalWithoutAnswer: a renewal whose answer is lost with its connection is made
// again.
func TestRenewalWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := mariadb()
	wire := servertest.NewWire(t, server.Addr())
	c := newClient(t, open(t, server.URLAt(wire.Addr()), &Options{Prefix: ownPrefix(), PruneEvery: -1}), nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		lost := wire.LoseReplyTo("")
		if err := lease.Save(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Errorf("round %d: %v", i, err)
		}
		<-lost
	}
	if err := lease.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := c.Acquire(t.Context(), "k", nil)
	if err != nil || string(again.Progress()) != "2" {
		t.Fatalf("%q, %v", again.Progress(), err)
	}
	if err := again.Release(); err != nil {
		t.Error(err)
	}
}

// TestKilledUnderLoad: whatever connections are ended while many work, no two hold a
// key, and nothing is left behind.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
	crowd := newCrowd(t, open(t, server.URL(), nil), open(t, server.URL(), nil))
	for i := range 40 {
		for _, row := range server.Query(others + " ORDER BY RAND() LIMIT 2") {
			_, _ = server.Do([]string{"KILL ", "KILL QUERY "}[i%2] + row[0])
		}
		crowd.goOn(3)
	}
	crowd.end()
}

// TestServerRestarts: a server that crashes and comes back while many work loses no
// lease and no record.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, nil)
	crowd := newCrowd(t, open(t, server.URL(), nil), open(t, server.URL(), nil))
	for range 3 {
		server.Kill()
		server.Restart()
		crowd.goOn(50)
	}
	crowd.end()
}

// TestCutOff: a process that is cut off from the server for some seconds, by a network
// that refuses or by one that is silent, goes on when it is back. Meanwhile its own
// calls end in time, and the others are held up for as long as its leases last.
func TestCutOff(t *testing.T) {
	t.Parallel()
	server := mariadb()
	for name, trouble := range map[string]func(*servertest.Wire){"cut": (*servertest.Wire).Cut, "hang": (*servertest.Wire).Hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wire, o := servertest.NewWire(t, server.Addr()), &Options{Prefix: ownPrefix()}
			crowd := newCrowd(t, open(t, server.URLAt(wire.Addr()), o), open(t, server.URL(), o))
			crowd.goOn(50)
			lone := newClient(t, open(t, server.URLAt(wire.Addr()), o), nil)
			trouble(wire)
			back := time.Now().Add(10 * time.Second)
			for time.Now().Before(back) {
				start := time.Now()
				if _, err := lone.Acquire(t.Context(), "lone", nil); !errors.Is(err, dibs.ErrStore) {
					t.Errorf("%v, want ErrStore", err)
				}
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
				crowd.goOn(1) // those who are not cut off
			}
			wire.Mend()
			eventually(t, 20*time.Second, "it is back", func() bool {
				lease, err := lone.Acquire(t.Context(), "lone", nil)
				return err == nil && lease.Release() == nil
			})
			crowd.goOn(50)
			crowd.end()
		})
	}
}

// TestCloseAfterCut: a store whose connections were cut closes without complaint.
func TestCloseAfterCut(t *testing.T) {
	t.Parallel()
	server := mariadb()
	wire := servertest.NewWire(t, server.Addr())
	s := open(t, server.URLAt(wire.Addr()), &Options{Prefix: ownPrefix()})
	claims := []dibs.Claim{{Key: dibs.Key{Name: "k"}, Token: dibs.NewToken(), TTL: time.Second, Permits: 1}}
	if err := s.Claim(t.Context(), claims, make([]dibs.Answer, 1)); err != nil {
		t.Fatal(err)
	}
	wire.Cut()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestExhausted: an application that uses up all connections of the server does not
// keep leases from being renewed and released.
func TestExhausted(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{MaxConnections: 30})
	server.Query("CREATE USER app@'127.0.0.1'; GRANT ALL ON app.* TO app@'127.0.0.1'") // root has one connection more
	url := strings.Replace(server.URL(), "root@", "app@", 1)
	s := open(t, url, nil)
	client := newClient(t, s, &dibs.Options{TTL: 3 * time.Second})
	start := time.Now()
	lease, err := client.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := client.Acquire(t.Context(), "l", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Release(); err != nil {
		t.Fatal(err)
	}
	db := openDB(t, url)
	for {
		conn, err := db.Conn(t.Context())
		if err != nil {
			if !errors.Is(explain(err), ErrCrowded) {
				t.Errorf("%v, want ErrCrowded", explain(err))
			}
			break
		}
		defer conn.Close()
	}
	eventually(t, 20*time.Second, "the lease is renewed", func() bool { return lease.Until().Sub(start) > 7*time.Second })
	if err := context.Cause(lease.Context()); err != nil {
		t.Errorf("the lease ended: %v", err)
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}

// TestStandstill: a process that stands still in the middle of a transaction does not
// keep the key's row locked for long.
func TestStandstill(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*servertest.MariaDBServer{"MariaDB": mariadb(), "MySQL": mysqld()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, server.URL(), &Options{Prefix: ownPrefix(), PruneEvery: -1})
			k := dibs.Key{Name: "k"}
			cycle(t, s, k)
			err := use(t.Context(), s.front, func(c session) error {
				b := newBatch(s.names, c, locking)
				b.want(keyOf(k), dibs.NewToken())
				if err := b.load(t.Context(), begins+";", nil); err != nil {
					t.Error(err)
				}
				// The others wait, and fail alone, until the server has had enough of it.
				eventually(t, 20*time.Second, "the row is free", func() bool {
					answers := make([]dibs.Answer, 1)
					claim := dibs.Claim{Key: k, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}
					if err := s.Claim(t.Context(), []dibs.Claim{claim}, answers); err != nil {
						t.Error(err)
					}
					return answers[0].State == dibs.Granted
				})
				last := &script{}
				return last.raw("COMMIT").done().run(t.Context(), c.conn)
			})
			if err == nil {
				t.Error("the transaction was not ended")
			}
		})
	}
}

// wrongClock has a store believe that the server's clock is off. It stands between it
// and its driver, and changes what is read of the clock.
type wrongClock struct {
	driver.Connector
	off *atomic.Int64 // seconds
}

func (w wrongClock) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := w.Connector.Connect(ctx)
	return wrongConn{conn, w.off}, err
}

type wrongConn struct {
	driver.Conn
	off *atomic.Int64
}

func (w wrongConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	text = strings.ReplaceAll(text, clock, fmt.Sprintf("(%s+%d)", clock, w.off.Load()*1e6))
	return w.Conn.(driver.QueryerContext).QueryContext(ctx, text, args)
}

// TestClockSetBack: when the server's clock is set back while many work, no two hold a
// key, fences rise, and no record is lost.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	var off atomic.Int64
	server, prefix := mariadb(), ownPrefix()
	wrong := func() *Store {
		s := open(t, server.URL(), &Options{Prefix: prefix, PruneEvery: -1})
		c, err := mysql.NewConnector(s.config)
		if err != nil {
			t.Fatal(err)
		}
		for _, db := range []**sql.DB{&s.front, &s.back, &s.ear} {
			if err := (*db).Close(); err != nil {
				t.Error(err)
			}
			*db = sql.OpenDB(wrongClock{connector{c}, &off})
			(*db).SetMaxIdleConns(frontConns)
		}
		return s
	}
	crowd := newCrowd(t, wrong(), wrong())
	crowd.goOn(50)
	client := newClient(t, crowd.s, &dibs.Options{TTL: 2 * time.Second})
	answer := func() string {
		t.Helper()
		got, err := dibs.Once(t.Context(), client, "kept", nil, func(context.Context) (string, error) { return time.Now().String(), nil })
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	kept, fence := answer(), uint64(0)
	held, err := client.Acquire(t.Context(), "held", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, back := range []time.Duration{10 * time.Minute, time.Hour, 30 * 24 * time.Hour} {
		off.Store(-int64(back.Seconds()))
		lease, err := client.Acquire(t.Context(), "again and again", nil)
		if err != nil {
			t.Fatal(err)
		}
		if lease.Fence() <= fence {
			t.Errorf("%v: the fence is %d after %d", back, lease.Fence(), fence)
		}
		fence = lease.Fence()
		if err := lease.Release(); err != nil {
			t.Errorf("%v: %v", back, err)
		}
		if got := answer(); got != kept {
			t.Errorf("%v: %q, want %q", back, got, kept)
		}
		if _, err := client.Acquire(t.Context(), "held", &dibs.AcquireOptions{NoWait: true}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("%v: %v, want ErrHeld", back, err)
		}
		renewed := held.Until()
		eventually(t, 10*time.Second, "the lease is renewed", func() bool { return held.Until().After(renewed) })
		crowd.goOn(50)
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
	lease, err := client.Acquire(t.Context(), "held", &dibs.AcquireOptions{NoWait: true})
	if err != nil || lease.Fence() <= held.Fence() || lease.Attempt() != 1 {
		t.Errorf("%v, %v", lease, err)
	} else if err := lease.Release(); err != nil {
		t.Error(err)
	}
	crowd.end()
}
