//go:build unix

package servertest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// redisProgram is Redis 7.0 or newer. In Debian, server and file checkers are one program
// with several names, so the package of the tools is enough, and has no service.
var redisProgram = program{
	names:  []string{"redis-server", "redis-check-rdb"},
	places: []string{"/usr/bin", "/usr/local/bin", "/usr/local/sbin", "/opt/redis/bin"},
	pkg:    "redis-tools",
	env:    "DIBS_REDIS",
}

// valkeyProgram is Valkey 8.0 or newer. It is a fork of Redis 7.2 with the same
// configuration.
var valkeyProgram = program{
	names:      []string{"valkey-server", "valkey-check-rdb"},
	places:     redisProgram.places,
	pkg:        "valkey-tools",
	backported: true,
	env:        "DIBS_VALKEY",
}

// A RedisServer is a Redis server of a test.
type RedisServer struct {
	server
	bus     *port // of a cluster node
	options RedisOptions
}

// Redis starts a Redis server that ends with its owner, and returns when it
// answers. nil options mean the defaults.
func Redis(owner Owner, o *RedisOptions) *RedisServer {
	owner.Helper()
	s, err := newRedis(owner, o)
	return started(owner, s, err)
}

// newRedis starts a server. It may be called from any goroutine.
func newRedis(owner Owner, o *RedisOptions) (*RedisServer, error) {
	o = options(o)
	program := &redisProgram
	if o.Valkey {
		program = &valkeyProgram
	}
	path, err := program.find()
	if err != nil {
		return nil, err
	}
	// Some kernels may give a reserved port to another process. Then try the next one.
	for tries := 5; ; tries-- {
		s, err := startRedis(owner, path, o)
		if err == nil {
			return s, nil
		}
		if tries == 1 || !strings.Contains(err.Error(), "already in use") {
			return nil, err
		}
	}
}

// startRedis makes the server's folder, configures it and starts it.
func startRedis(owner Owner, path string, o *RedisOptions) (*RedisServer, error) {
	s := &RedisServer{options: *o}
	var err error
	if o.role.cluster {
		if s.bus, err = reservePort(); err != nil {
			return nil, err
		}
		owner.Cleanup(s.bus.release)
	}
	if err := s.prepare(owner, s.kind()); err != nil {
		return nil, err
	}
	s.ready, s.wipe = s.answers, s.wipeData
	s.command.path, s.command.args = path, []string{"redis-server", s.folder.join("redis.conf")} // the name selects the role
	if o.Clock != nil {
		s.command.env = append(os.Environ(), o.Clock.env()...)
	}
	if o.role.sentinel {
		s.command.args = append(s.command.args, "--sentinel")
	}
	config, err := o.config(s.folder, s.port, s.bus)
	if err == nil {
		err = s.write(map[string]string{"redis.conf": config})
	}
	if err != nil {
		return nil, err
	}
	return s, s.beginEmpty()
}

// kind is the server's kind in messages.
func (s *RedisServer) kind() string {
	kind := "redis"
	if s.options.Valkey {
		kind = "valkey"
	}
	if s.options.role.sentinel {
		return kind + "-sentinel"
	}
	return kind + "-server"
}

// URL returns the server's address with the default user:
// "redis://:secret@127.0.0.1:4321/0", or "rediss://" with TLS.
func (s *RedisServer) URL() string { return s.URLAt(s.Addr()) }

// URLAt is URL with another address, that of a Wire to the server.
func (s *RedisServer) URLAt(addr string) string {
	u := url.URL{Scheme: "redis", Host: addr, Path: "/0"}
	if s.options.TLS {
		u.Scheme = "rediss"
	}
	if s.options.Password != "" {
		u.User = url.UserPassword("", s.options.Password)
	}
	return u.String()
}

// TLSConfig returns the TLS settings of a client, or nil if the server does not use TLS.
func (s *RedisServer) TLSConfig() *tls.Config {
	if !s.options.TLS {
		return nil
	}
	cert, err := testCertificate()
	if err != nil {
		return nil // the server could not have started
	}
	return cert.client.Clone()
}

// CAFile returns the PEM file of the certificate to trust, or "" if the server does not
// use TLS.
func (s *RedisServer) CAFile() string {
	if !s.options.TLS {
		return ""
	}
	return s.folder.join("cert.pem")
}

// Dial connects to the server as the default user. The caller closes the
// connection.
func (s *RedisServer) Dial() (*RedisConn, error) { return s.dial(s.Addr()) }

// dial connects to a server that is like this one.
func (s *RedisServer) dial(addr string) (*RedisConn, error) {
	return dialRedis(addr, s.TLSConfig(), "default", s.options.Password)
}

// Do sends a command on a new connection and returns the answer as RedisConn.Do does. It
// may be called from any goroutine. Commands that depend on the connection, such as WAIT
// after a write, need Dial.
func (s *RedisServer) Do(args ...any) (any, error) {
	conn, err := s.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.Do(args...)
}

// Must is Do, and ends the test after an error.
func (s *RedisServer) Must(args ...any) any {
	s.owner.Helper()
	answer, err := s.Do(args...)
	if err != nil {
		s.owner.Fatalf("%v at %s: %v", args, s.name, err)
	}
	return answer
}

// Info returns a field of INFO everything, such as "used_memory" or "cmdstat_evalsha", or
// "". It ends the test if the server does not answer.
func (s *RedisServer) Info(field string) string {
	s.owner.Helper()
	value, err := s.info(field)
	if err != nil {
		s.owner.Fatalf("INFO at %s: %v", s.name, err)
	}
	return value
}

func (s *RedisServer) info(field string) (string, error) {
	conn, err := s.Dial()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.info(field)
}

// answers returns nil when the server serves commands. While it loads its data, it
// answers LOADING.
func (s *RedisServer) answers() error {
	_, err := s.Do("PING")
	if e, ok := errors.AsType[RedisError](err); ok && !strings.HasPrefix(string(e), "LOADING") {
		// A refusal is an answer, such as that of a replica without its master. A wrong
		// password is an error in the test.
		if strings.HasPrefix(string(e), "WRONGPASS") {
			return permanentError{e}
		}
		return nil
	}
	if err == nil && s.options.role.first != nil {
		_, err = s.Do(s.options.role.first...)
	}
	return err
}

// wipeData replaces the data folder by an empty one.
func (s *RedisServer) wipeData() error {
	if err := os.RemoveAll(s.folder.join("data")); err != nil {
		return err
	}
	return os.Mkdir(s.folder.join("data"), 0o700)
}

// Promote makes a replica a master with its data, even after restarts.
func (s *RedisServer) Promote() {
	s.owner.Helper()
	s.Must("REPLICAOF", "NO", "ONE")
	s.Must("CONFIG", "REWRITE")
}

// AwaitReplica returns when the server is a replica that has everything its master had at
// the call.
func (s *RedisServer) AwaitReplica() {
	s.owner.Helper()
	mustAwait(s.owner, s.name, s.inStep)
}

// inStep returns nil when the server is a replica that has everything its master had a
// moment ago.
func (s *RedisServer) inStep() error {
	link, err := s.info("master_link_status")
	switch {
	case err != nil:
		return err
	case link == "":
		return errors.New("not a replica")
	case link != "up":
		return errors.New("the link to the master is " + link)
	}
	port, err := s.info("master_port")
	if err != nil {
		return err
	}
	sent, err := s.offset("127.0.0.1:"+port, "master_repl_offset")
	if err != nil {
		return err
	}
	got, err := s.offset(s.Addr(), "slave_repl_offset")
	if err == nil && got < sent {
		err = fmt.Errorf("%d bytes behind the master", sent-got)
	}
	return err
}

// offset returns the replication offset of a master or a replica.
func (s *RedisServer) offset(addr, field string) (int64, error) {
	conn, err := s.dial(addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	value, err := conn.info(field)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(value, 10, 64)
}

// Follow makes a server a replica of what is at an address, such as a Wire to its master.
func (s *RedisServer) Follow(addr string) {
	s.owner.Helper()
	host, port, _ := strings.Cut(addr, ":")
	s.Must("REPLICAOF", host, port)
}

// Rejoin makes a server that was the master before an empty replica of what is at an address, such as
// a Wire to the new master.
func (s *RedisServer) Rejoin(_ *RedisServer, addr string) {
	s.owner.Helper()
	s.do("emptying", func() error {
		if err := s.stop(); err != nil {
			return err
		}
		if err := s.wipe(); err != nil {
			return err
		}
		return s.run()
	})
	s.Follow(addr)
}

// Position returns how many bytes a master has sent to replicas, or would have.
func (s *RedisServer) Position() (int64, error) { return s.offset(s.Addr(), "master_repl_offset") }

// Received returns how many bytes of its master a replica has.
func (s *RedisServer) Received() (int64, error) { return s.offset(s.Addr(), "slave_repl_offset") }

// AwaitStandby is AwaitReplica.
func (s *RedisServer) AwaitStandby(*RedisServer) {
	s.owner.Helper()
	s.AwaitReplica()
}

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
