//go:build unix

package servertest

import (
	"fmt"
	"strings"
)

// Persistence is what a Redis server keeps on disk.
type Persistence int

const (
	// NoPersistence keeps nothing: a restart loses everything.
	NoPersistence Persistence = iota
	// RDB saves everything when the server is stopped, on SAVE, and at times;
	// a kill loses what came after the last time.
	RDB
	// AOF writes every command and syncs each before it is answered: a kill
	// loses nothing.
	AOF
	// AOFEverySecond writes every command and syncs once a second, the
	// server's own default: a kill of the process loses nothing, unless a sync is
	// still under way, for which writes wait up to two seconds; a failure of the
	// machine loses those.
	AOFEverySecond
)

// RedisOptions describes a Redis server. nil and the zero value mean a server without
// persistence, password, TLS and limits.
type RedisOptions struct {
	// Valkey starts Valkey instead of Redis.
	Valkey      bool
	Persistence Persistence
	// MaxMemory is the memory in bytes above which Policy applies; 0: no limit.
	MaxMemory int64
	// Policy is the maxmemory-policy, such as "allkeys-lru"; "": noeviction.
	Policy string
	// Databases is the number of databases. 0: 16.
	Databases int
	// Password is the default user's password; "": none.
	Password string
	// Users are more users, as ACL rules:
	// "app on >secret ~dibs:* &dibs:* +@all -@dangerous".
	Users []string
	// TLS makes the server use TLS only, with the process's certificate.
	TLS bool
	// ReplicaOf is the master of the server, with the same password and TLS; nil: the
	// server is a master.
	ReplicaOf *RedisServer
	// Clock is the server's time of day; nil: the host's.
	Clock *Clock
	// Directives are more lines of the configuration, which override the others: "hz
	// 100".
	Directives []string

	// role is set by RedisCluster and RedisSentinel.
	role redisRole
}

// redisRole makes a server a node of a cluster, or a sentinel.
type redisRole struct {
	cluster  bool
	sentinel bool
	lines    []string
	first    []any // a command to send after each start
}

// config returns the configuration of a server in the folder, at the port. Its data is in
// the folder's "data".
func (o *RedisOptions) config(f *folder, at, bus *port) (string, error) {
	lines := []string{
		"bind 127.0.0.1",
		"protected-mode no",
		"daemonize no",
		"dir " + quote(f.join("data")),
		`logfile ""`, // standard output
	}
	listen := "port"
	if o.TLS {
		cert, err := testCertificate()
		if err != nil {
			return "", err
		}
		if err := cert.write(f); err != nil {
			return "", err
		}
		listen = "tls-port"
		lines = append(lines,
			"port 0",
			"tls-cert-file "+quote(f.join("cert.pem")),
			"tls-key-file "+quote(f.join("key.pem")),
			"tls-ca-cert-file "+quote(f.join("cert.pem")),
			"tls-auth-clients optional",
			"tls-replication yes",
		)
		if o.role.cluster {
			lines = append(lines, "tls-cluster yes")
		}
	}
	lines = append(lines, listen+" "+at.String())
	if o.Password != "" {
		lines = append(lines, "requirepass "+quote(o.Password))
	}
	for _, user := range o.Users {
		lines = append(lines, "user "+user)
	}
	if !o.role.sentinel {
		lines = append(lines, o.dataLines()...)
	}
	if o.role.cluster {
		lines = append(lines,
			"cluster-enabled yes",
			// Outside the data, so a node that lost its data still knows its peers.
			"cluster-config-file "+quote(f.join("nodes.conf")),
			"cluster-port "+bus.String(),
		)
	}
	lines = append(append(lines, o.role.lines...), o.Directives...)
	return strings.Join(lines, "\n") + "\n", nil
}

// dataLines are the lines for servers with data, not for sentinels.
func (o *RedisOptions) dataLines() []string {
	lines := []string{
		"enable-debug-command yes",
		// A replica is in step at once, not seconds later, and a stop does not wait
		// long for a paused replica.
		"repl-diskless-sync-delay 0",
		"shutdown-timeout 1",
	}
	switch o.Persistence {
	case NoPersistence:
		// Nor does a replica keep the copy of its master.
		lines = append(lines, `save ""`, "rdb-del-sync-files yes")
	case RDB:
		lines = append(lines, "save 60 1")
	case AOF:
		lines = append(lines, `save ""`, "appendonly yes", "appendfsync always")
	case AOFEverySecond:
		lines = append(lines, `save ""`, "appendonly yes", "appendfsync everysec")
	}
	if o.MaxMemory != 0 {
		lines = append(lines, fmt.Sprintf("maxmemory %d", o.MaxMemory))
	}
	if o.Policy != "" {
		lines = append(lines, "maxmemory-policy "+o.Policy)
	}
	if o.Databases != 0 {
		lines = append(lines, fmt.Sprintf("databases %d", o.Databases))
	}
	if o.Password != "" {
		lines = append(lines, "masterauth "+quote(o.Password))
	}
	if o.ReplicaOf != nil {
		lines = append(lines, "replicaof 127.0.0.1 "+o.ReplicaOf.port.String())
	}
	return lines
}

// quote quotes s as one word of a Redis configuration.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
