//go:build unix

// Package target starts stores whose servers are the run's own, so that every fault can strike
// them. It is for tests. It starts real servers (internal/prove/servertest), and installs them where
// they are missing.
package target

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// Kind is one kind of store.
type Kind struct {
	// Name is what the store is kept in: "redis", "sqlite".
	Name string
	// New starts one that ends with its owner. The Target has no workers and no wires yet.
	New func(owner servertest.Owner) *fault.Target
	// Faults are those that it is there for, as fault.ParseList reads them. Default: all.
	Faults string
}

const (
	// failovers are the faults of stores that are there for their failovers. Other rows have the
	// faults of the network without them.
	failovers = "worker,server-kill,kill-connections,failover,split"
	// listed are those of stores whose URL names several servers, before which there are no wires.
	listed = "worker,failover"
	// managed are those of stores under a program that manages failovers.
	managed = "worker,manager"
)

// Kinds returns every kind, in the order of reports.
func Kinds() []Kind {
	return []Kind{
		{"sqlite", func(owner servertest.Owner) *fault.Target { return SQLite(owner, false) }, ""},
		{"sqlite-shared", func(owner servertest.Owner) *fault.Target { return SQLite(owner, true) }, ""},
		{"redis", func(owner servertest.Owner) *fault.Target { return Redis(owner, nil) }, ""},
		{"valkey", func(owner servertest.Owner) *fault.Target {
			return Redis(owner, &servertest.RedisOptions{Valkey: true})
		}, ""},
		{"redis-replicated", RedisReplicated, failovers},
		{"redis-sentinel", Sentinel, ""},
		{"redis-cluster", Cluster, ""},
		{"postgres", Postgres, ""},
		{"postgres-sql", postgresBySQL, ""},
		{"postgres-synchronous", func(owner servertest.Owner) *fault.Target { return postgresGroup(owner, 1, "*") }, failovers},
		{"postgres-quorum", func(owner servertest.Owner) *fault.Target { return postgresGroup(owner, 2, "ANY 1 (*)") }, failovers},
		{"postgres-hosts", postgresHosts, listed},
		{"postgres-local", PostgresLocal, failovers},
		{"postgres-asynchronous", func(owner servertest.Owner) *fault.Target { return postgresGroup(owner, 1, "") }, failovers},
		{"postgres-patroni", PostgresPatroni, managed},
		{"postgres-patroni-hosts", func(owner servertest.Owner) *fault.Target { return PostgresPatroniHosts(owner, false) }, managed},
		{"mariadb", func(owner servertest.Owner) *fault.Target { return MariaDB(owner, nil) }, ""},
		{"mysql", func(owner servertest.Owner) *fault.Target {
			return MariaDB(owner, &servertest.MariaDBOptions{MySQL: true})
		}, ""},
		{"mariadb-semi-synchronous", func(owner servertest.Owner) *fault.Target { return mariadbGroup(owner, true) }, failovers},
		{"mariadb-asynchronous", func(owner servertest.Owner) *fault.Target { return mariadbGroup(owner, false) }, failovers},
		{"etcd", Etcd, ""},
		{"etcd-three", EtcdThree, listed},
		{"s3", S3, ""},
		{"serve", Serve, ""},
		{"serve-pair", ServePair, listed},
	}
}

// connections is how many connections a server has, enough for the workers.
const connections = 100

// SQLite makes a folder for a store in a file, which is the store's own or shared with an
// application. Where possible, the folder is a small filesystem of its own, which can be filled
// without harm.
func SQLite(owner servertest.Owner, shared bool) *fault.Target {
	owner.Helper()
	folder, err := os.MkdirTemp("", "dibs-target-")
	if err != nil {
		owner.Fatalf("making a folder for a store: %v", err)
	}
	owner.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			owner.Logf("removing the folder of a store: %v", err)
		}
	})
	unmount, err := mount(folder)
	if err != nil {
		owner.Logf("no filesystem of the run's own: %v", err)
	} else {
		owner.Cleanup(func() {
			if err := unmount(); err != nil {
				owner.Logf("unmounting the filesystem of a store: %v", err)
			}
		})
	}
	url := "sqlite:" + filepath.Join(folder, "dibs.db")
	if shared {
		url += "?shared=true"
	}
	return &fault.Target{URL: url, Durable: true}
}

// MariaDB starts a MariaDB or a MySQL. It sets the clock, the number of connections and NoSync.
// Nil means the defaults. A kill loses nothing that was committed.
func MariaDB(owner servertest.Owner, o *servertest.MariaDBOptions) *fault.Target {
	owner.Helper()
	options := servertest.MariaDBOptions{}
	if o != nil {
		options = *o
	}
	clock := servertest.NewClock(owner)
	options.NoSync, options.MaxConnections, options.Clock = true, connections, clock
	s := servertest.MariaDB(owner, &options)
	return &fault.Target{URL: s.URL() + "?migrate=true", Server: s, Clock: clock, Durable: true}
}

// mariadbGroup starts a MariaDB with a replica, which is semi-synchronous or not.
func mariadbGroup(owner servertest.Owner, synchronous bool) *fault.Target {
	owner.Helper()
	options := servertest.MariaDBOptions{NoSync: true, MaxConnections: connections, Replicas: true, SemiSync: synchronous}
	start := func() *servertest.MariaDBServer { return servertest.MariaDB(owner, &options) }
	primary := start()
	g := newGroup(owner, primary, 1, start)
	return &fault.Target{URL: primary.URL() + "?migrate=true", Server: g, Failover: g, Durable: true, Synchronous: synchronous}
}

// Postgres starts a PostgreSQL. A kill of its processes loses nothing that was committed.
func Postgres(owner servertest.Owner) *fault.Target {
	owner.Helper()
	clock := servertest.NewClock(owner)
	s := servertest.Postgres(owner, &servertest.PostgresOptions{NoSync: true, MaxConnections: connections, Clock: clock})
	return &fault.Target{URL: s.URL() + "&migrate=true", Server: s, Clock: clock, Durable: true}
}

// BySQL is in the URL of postgres-sql, before the address of the pooler.
const BySQL = "&application_name=by_sql_"

// postgresBySQL is a PostgreSQL with a synchronous standby and a pooler in transaction mode, through which
// workers may take leases by SQL, beside workers in Go. The pooler follows the primary.
func postgresBySQL(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := postgresGroup(owner, 1, "*")
	g := t.Failover.(*group[*servertest.PostgresServer])
	pooler := servertest.PgBouncer(owner, g.primary, &servertest.PgBouncerOptions{
		PoolSize: 30, Through: g.follow(owner).Addr(), Settings: []string{"server_login_retry = 1"},
	})
	keep(owner, pooler)
	t.URL += BySQL + pooler.Addr()
	return t
}

// keep starts a pooler again that has ended by itself, as systemd does: PgBouncer 1.18 may end when the
// client of a cancel request goes away ("bad client state").
func keep(owner servertest.Owner, pooler *servertest.PgBouncerServer) {
	owner.Helper()
	over, ended := make(chan struct{}), make(chan struct{})
	owner.Cleanup(func() { close(over); <-ended })
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond):
			}
			if !pooler.Running() {
				pooler.Restart()
			}
		}
	}()
}

// postgresHosts is a PostgreSQL with a synchronous standby and a URL that names both. It has no wires.
func postgresHosts(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := postgresGroup(owner, 1, "*")
	g := t.Failover.(*group[*servertest.PostgresServer])
	t.URL = strings.Replace(t.URL, g.primary.Addr(), g.primary.Addr()+","+g.standbys[0].server.Addr(), 1)
	return t
}

// PostgresLocal starts a PostgreSQL with a synchronous standby, and a store that does not wait for
// it.
func PostgresLocal(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := postgresGroup(owner, 1, "*")
	t.URL, t.Synchronous = t.URL+"&synchronous_commit=local", false
	return t
}

// postgresGroup starts a PostgreSQL with standbys. The old primary comes back by pg_rewind. A commit
// waits for the synchronous ones, as synchronous_standby_names says.
func postgresGroup(owner servertest.Owner, standbys int, synchronous string) *fault.Target {
	owner.Helper()
	options := servertest.PostgresOptions{
		NoSync: true, MaxConnections: connections, Standbys: true, Settings: []string{"synchronous_standby_names = '" + synchronous + "'"},
	}
	primary := servertest.Postgres(owner, &options)
	options.StandbyOf = primary
	g := newGroup(owner, primary, standbys, func() *servertest.PostgresServer { return servertest.Postgres(owner, &options) })
	return &fault.Target{URL: primary.URL() + "&migrate=true", Server: g, Failover: g, Durable: true, Synchronous: synchronous != ""}
}

// Redis starts a Redis or a Valkey, and its replica. It sets persistence and the clock. Nil
// means the defaults. A kill of the process loses nothing that it acknowledged.
func Redis(owner servertest.Owner, o *servertest.RedisOptions) *fault.Target {
	owner.Helper()
	options := servertest.RedisOptions{}
	if o != nil {
		options = *o
	}
	clock := servertest.NewClock(owner)
	options.Persistence, options.Clock = servertest.AOF, clock
	options.Directives = append(options.Directives[:len(options.Directives):len(options.Directives)],
		fmt.Sprintf("maxclients %d", connections))
	start := func() *servertest.RedisServer { return servertest.Redis(owner, &options) }
	master := start()
	g := newGroup(owner, master, 1, start)
	return &fault.Target{URL: master.URL(), Server: g, Failover: g, Clock: clock, Durable: true}
}

// RedisReplicated starts a Redis with a replica, and a store that waits for it.
func RedisReplicated(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := Redis(owner, nil)
	t.URL, t.Clock, t.Synchronous = t.URL+"?replicas=1", nil, true
	return t
}

// Etcd starts an etcd of one member. Nobody opens its URL but the tests of package torture.
func Etcd(owner servertest.Owner) *fault.Target {
	owner.Helper()
	clock := servertest.NewClock(owner)
	s := servertest.Etcd(owner, &servertest.EtcdOptions{Clock: clock})
	return &fault.Target{URL: "etcd://" + s.Addr(), Server: s, Clock: clock, Clockless: true, Durable: true}
}

// EtcdThree starts an etcd of three members. The clients know all. A failover kills the one that
// leads, or freezes it for longer than it leads then.
func EtcdThree(owner servertest.Owner) *fault.Target {
	owner.Helper()
	e := &etcdThree{members: servertest.EtcdMembers(owner, 3, nil)}
	var addrs []string
	for _, m := range e.members {
		addrs = append(addrs, m.Addr())
	}
	return &fault.Target{URL: "etcd://" + strings.Join(addrs, ","), Failover: e, Synchronous: true}
}

type etcdThree struct {
	members []*servertest.EtcdServer
	down    *servertest.EtcdServer
	frozen  bool
}

var _ fault.Failover = (*etcdThree)(nil)

// Lag does nothing: what is acknowledged, most members have.
func (e *etcdThree) Lag() error { return nil }

// leader waits until a member leads that is not down.
func (e *etcdThree) leader() (*servertest.EtcdServer, error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, m := range e.members {
			if m != e.down && m.Leads() {
				return m, nil
			}
		}
	}
	return nil, errors.New("no member of etcd leads")
}

// Promote takes the leader away, and returns the address of the next one.
func (e *etcdThree) Promote(bool) (addr string, err error) {
	leader, err := e.leader()
	if err != nil {
		return "", err
	}
	e.down, e.frozen = leader, rand.IntN(2) == 0
	if e.frozen {
		leader.Pause()
	} else {
		leader.Kill()
	}
	next, err := e.leader()
	if err != nil {
		return "", err
	}
	return next.Addr(), nil
}

// Rebuild brings it back, after clients had to go to the others.
func (e *etcdThree) Rebuild() (behind int64, err error) {
	time.Sleep(silence)
	if e.frozen {
		e.down.Continue()
	} else {
		e.down.Restart()
	}
	e.down = nil
	return 0, nil
}

// S3 starts an object storage. Its credentials are in the environment, for the workers too.
func S3(owner servertest.Owner) *fault.Target {
	owner.Helper()
	s := servertest.S3(owner)
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": servertest.S3Access, "AWS_SECRET_ACCESS_KEY": servertest.S3Secret} {
		if err := os.Setenv(name, value); err != nil {
			owner.Fatalf("%v", err)
		}
	}
	return &fault.Target{URL: s.Store("") + "&tick=100ms", Server: s, Durable: true}
}

// Serve starts a dibs serve on a SQLite file. It has no memory of its own, so a kill loses
// nothing.
func Serve(owner servertest.Owner) *fault.Target {
	owner.Helper()
	s := servertest.DibsServe(owner, "")
	return &fault.Target{URL: s.URL(), Server: s, Durable: true}
}

// ServePair starts two dibs serve on one SQLite file. The clients know both.
func ServePair(owner servertest.Owner) *fault.Target {
	owner.Helper()
	first := servertest.DibsServe(owner, "")
	p := &servePair{both: []*servertest.DibsServer{first, servertest.DibsServe(owner, first.Store)}}
	return &fault.Target{URL: first.URL() + "," + p.both[1].Addr(), Failover: p, Synchronous: true}
}

// servePair is two servers of one store. A failover ends one of them for a moment.
type servePair struct {
	both []*servertest.DibsServer
	down *servertest.DibsServer
}

var _ fault.Failover = (*servePair)(nil)

// Lag does nothing: what one server acknowledges, the other one knows.
func (p *servePair) Lag() error { return nil }

// Promote ends one of the servers.
func (p *servePair) Promote(bool) (addr string, err error) {
	i := rand.IntN(2)
	p.down = p.both[i]
	p.down.Kill()
	return p.both[1-i].Addr(), nil
}

// Rebuild starts it again, after clients had to go to the other one.
func (p *servePair) Rebuild() (behind int64, err error) {
	time.Sleep(silence)
	p.down.Restart()
	return 0, nil
}
