//go:build unix

package servertest

import (
	"crypto/tls"
	"errors"
	"net/url"
	"os"
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
