//go:build unix

package servertest

import (
	"cmp"
	"encoding/json"

	"github.com/dibs-go/dibs/internal/prove/wire"
)

// A PatroniNode is a PostgreSQL and its Patroni, of a PatroniCluster. Its methods are about the
// Patroni, which is no parent of the PostgreSQL: they live without each other.
type PatroniNode struct {
	server
	// Link is the way from Patroni to etcd.
	Link     *wire.Wire
	id       string
	bin      string // the folder of PostgreSQL's programs
	postgres *port
}

// newPatroniNode makes the node's folder, configures it and starts its Patroni, which starts the
// PostgreSQL.
func newPatroniNode(owner Owner, etcd *EtcdServer, id, path, bin string, o *PatroniOptions) (*PatroniNode, error) {
	n := &PatroniNode{id: id, bin: bin}
	err := n.prepare(owner, "patroni of "+id, "postgres")
	if err != nil {
		return nil, err
	}
	if n.postgres, err = reservePort(); err != nil {
		return nil, err
	}
	owner.Cleanup(n.postgres.release)
	n.Link = NewWire(owner, etcd.Addr())
	config, err := json.Marshal(n.config(o)) // which is YAML, too
	if err != nil {
		return nil, err
	}
	if err := n.write(map[string]string{"patroni.yml": string(config)}); err != nil {
		return nil, err
	}
	guard, err := watchScript(`kill -9 "$(head -n 1 '` + n.folder.join("data/postmaster.pid") + `')"`)
	if err != nil {
		return nil, err
	}
	owner.Cleanup(func() {
		n.Kill()
		if err := endPostgres(n.folder.join("data")); err != nil {
			owner.Logf("ending the PostgreSQL of %s: %v", id, err)
		}
		guard.end()
	})
	n.ready = n.answering("/liveness")
	n.command.path, n.command.args = path, []string{"patroni", n.folder.join("patroni.yml")}
	n.command.env = []string{"LC_ALL=C.UTF-8", "TZ=UTC", "HOME=" + n.folder.path, "PATH=" + bin + ":/usr/bin:/bin"}
	return n, n.begin()
}

// config returns the configuration of the node's Patroni. Patroni's defaults for the time are made
// for hosts: a failover takes half a minute. Here the same happens in seconds, and in the same
// proportions: ttl is at least loop_wait and twice retry_timeout.
func (n *PatroniNode) config(o *PatroniOptions) map[string]any {
	type settings = map[string]any
	return settings{
		"scope": "dibs", "name": n.id,
		"restapi": settings{"listen": n.Addr(), "connect_address": n.Addr()},
		// A proxy, so that Patroni does not ask etcd for an address beside the wire.
		"etcd3": settings{"hosts": []string{n.Link.Addr()}, "use_proxies": true},
		"bootstrap": settings{
			"dcs": settings{
				"ttl": 5, "loop_wait": 1, "retry_timeout": 2,
				"synchronous_mode": !o.Asynchronous, "synchronous_mode_strict": !o.Asynchronous,
				"postgresql": settings{
					"use_pg_rewind": true,
					"parameters":    settings{"max_connections": cmp.Or(o.MaxConnections, 100)},
				},
			},
			"initdb": []any{settings{"encoding": "UTF8"}, settings{"locale": "C"}, "no-sync"},
		},
		"postgresql": settings{
			"listen": n.postgres.addr(), "connect_address": n.postgres.addr(),
			"data_dir": n.folder.join("data"), "bin_dir": n.bin, "pgpass": n.folder.join("pgpass"),
			"use_unix_socket": true,
			"authentication": settings{
				"superuser": settings{"username": "postgres"}, "replication": settings{"username": "postgres"},
			},
			"basebackup": []any{settings{"checkpoint": "fast"}, "no-sync"},
			"pg_hba":     []string{"local all,replication all trust", "host all,replication all 127.0.0.1/32 trust"},
			"parameters": settings{
				"unix_socket_directories": n.folder.path, "fsync": "off", "huge_pages": "off", "dynamic_shared_memory_type": "mmap",
				"wal_retrieve_retry_interval": "100ms", "lc_messages": "C", "log_timezone": "UTC", "timezone": "UTC",
			},
		},
	}
}

// Do runs SQL with psql, and returns the rows of the last statement as text.
func (n *PatroniNode) Do(sql string) ([][]string, error) {
	return n.psql(n.postgres).query("postgres", sql)
}

// psql returns a client for what is at a port.
func (n *PatroniNode) psql(at *port) *psql { return newPsql(n.bin, "127.0.0.1", at, "") }

// KillPostgres ends all processes of the PostgreSQL at once (SIGKILL).
func (n *PatroniNode) KillPostgres() {
	n.owner.Helper()
	n.do("killing the PostgreSQL of", func() error { return endPostgres(n.folder.join("data")) })
}
