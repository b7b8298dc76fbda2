//go:build unix

// Package target starts stores whose servers are the run's own, so that every fault can strike
// them. It is for tests. It starts real servers (internal/prove/servertest), and installs them where
// they are missing.
package target

import (
	"os"
	"path/filepath"

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
		{"postgres-sql", PostgresBySQL, ""},
		{"postgres-synchronous", PostgresSynchronous, failovers},
		{"postgres-quorum", PostgresQuorum, failovers},
		{"postgres-hosts", PostgresHosts, listed},
		{"postgres-local", PostgresLocal, failovers},
		{"postgres-asynchronous", PostgresAsynchronous, failovers},
		{"postgres-patroni", PostgresPatroni, managed},
		{"postgres-patroni-hosts", func(owner servertest.Owner) *fault.Target { return PostgresPatroniHosts(owner, false) }, managed},
		{"mariadb", func(owner servertest.Owner) *fault.Target { return MariaDB(owner, nil) }, ""},
		{"mysql", func(owner servertest.Owner) *fault.Target {
			return MariaDB(owner, &servertest.MariaDBOptions{MySQL: true})
		}, ""},
		{"mariadb-semi-synchronous", MariaDBSemiSynchronous, failovers},
		{"mariadb-asynchronous", MariaDBAsynchronous, failovers},
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
