//go:build unix

package servertest

import (
	"crypto/tls"
	"errors"
	"net/url"
	"os"
	"strings"
)

// redisProgram is Redis 7.0 or newer. Debian has server and file checkers in
// one program, which is what its name says: the package of the tools is enough,
// and brings no service along.
var redisProgram = program{
	names:  []string{"redis-server", "redis-check-rdb"},
	places: []string{"/usr/bin", "/usr/local/bin", "/usr/local/sbin", "/opt/redis/bin"},
	pkg:    "redis-tools",
	env:    "DIBS_REDIS",
}

// valkeyProgram is Valkey 8.0 or newer, which goes on from Redis 7.2 and
// understands the same configuration.
var valkeyProgram = program{
	names:      []string{"valkey-server", "valkey-check-rdb"},
	places:     redisProgram.places,
	pkg:        "valkey-tools",
	backported: true,
	env:        "DIBS_VALKEY",
}

// A RedisServer is a Redis server that belongs to a test.
type RedisServer struct {
	server
	port    *port
	bus     *port // of a cluster node
	options RedisOptions
}

// Redis starts a Redis server that ends with its owner, and returns when it
// answers. nil options mean the defaults.
func Redis(owner Owner, o *RedisOptions) *RedisServer {
	owner.Helper()
	s, err := newRedis(owner, o)
	if err != nil {
		owner.Fatalf("%v", err)
	}
	return s
}

// newRedis starts a server. Unlike Redis it may be called from any goroutine.
func newRedis(owner Owner, o *RedisOptions) (*RedisServer, error) {
	if o == nil {
		o = &RedisOptions{}
	}
	program := &redisProgram
	if o.Valkey {
		program = &valkeyProgram
	}
	path, err := program.find()
	if err != nil {
		return nil, err
	}
	// A port that is kept cannot be taken by another, except where the kernel
	// keeps ports in some other way: then the next one will do.
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
	if s.port, err = reservePort(); err != nil {
		return nil, err
	}
	owner.Cleanup(s.port.release)
	if o.role.cluster {
		if s.bus, err = reservePort(); err != nil {
			return nil, err
		}
		owner.Cleanup(s.bus.release)
	}
	f, err := newFolder(nil)
	if err != nil {
		return nil, err
	}
	s.server = server{owner: owner, name: s.kind() + " at " + s.port.addr(), folder: f, ready: s.answers, wipe: s.wipeData}
	s.command = command{
		path: path,
		// The name says what to be, whatever the file is called.
		args: []string{"redis-server", f.join("redis.conf")},
		dir:  f.path,
		log:  f.join("log"),
	}
	if o.Clock != nil {
		s.command.env = append(os.Environ(), o.Clock.env()...)
	}
	if o.role.sentinel {
		s.command.args = append(s.command.args, "--sentinel")
	}
	owner.Cleanup(s.end)
	config, err := o.config(f, s.port, s.bus)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(f.join("redis.conf"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	if err := s.wipe(); err != nil {
		return nil, err
	}
	return s, s.begin()
}

// kind is what the server is called in messages.
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

// Addr returns the server's address, "127.0.0.1:4321".
func (s *RedisServer) Addr() string { return s.port.addr() }

// URL returns the server's address with what is needed to use it as the
// default user: "redis://:secret@127.0.0.1:4321/0", or "rediss://" with TLS.
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

// TLSConfig returns what a client needs to trust the server and to prove
// itself, or nil when the server does not speak TLS.
func (s *RedisServer) TLSConfig() *tls.Config {
	if !s.options.TLS {
		return nil
	}
	cert, err := testCertificate()
	if err != nil {
		return nil // it could not have started
	}
	return cert.client.Clone()
}

// CAFile returns the path of the PEM file of the certificate to trust, for
// clients that take a file; "" when the server does not speak TLS.
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

// Do sends a command on a connection of its own and returns the answer as
// RedisConn.Do does. It may be called from any goroutine. What belongs to a
// connection, such as WAIT after a write, needs Dial instead.
func (s *RedisServer) Do(args ...any) (any, error) {
	conn, err := s.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.Do(args...)
}

// Must is Do for commands that have to work: it ends the test when one does
// not.
func (s *RedisServer) Must(args ...any) any {
	s.owner.Helper()
	answer, err := s.Do(args...)
	if err != nil {
		s.owner.Fatalf("%v at %s: %v", args, s.name, err)
	}
	return answer
}

// Info returns a field of INFO everything, such as "used_memory" or
// "cmdstat_evalsha", or "" where there is none. It ends the test when the
// server does not answer.
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

// answers returns nil when the server serves commands. One that has data to
// load says LOADING until it has.
func (s *RedisServer) answers() error {
	_, err := s.Do("PING")
	if e, ok := errors.AsType[RedisError](err); ok && !strings.HasPrefix(string(e), "LOADING") {
		// It may be told to serve nobody, as a replica without its master: that
		// is an answer. But a password that is wrong from the start is ours.
		if strings.HasPrefix(string(e), "WRONGPASS") {
			return over{e}
		}
		return nil
	}
	if err == nil && s.options.role.first != nil {
		_, err = s.Do(s.options.role.first...)
	}
	return err
}

// wipeData makes the data folder anew.
func (s *RedisServer) wipeData() error {
	if err := os.RemoveAll(s.folder.join("data")); err != nil {
		return err
	}
	return os.Mkdir(s.folder.join("data"), 0o700)
}
