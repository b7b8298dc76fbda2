//go:build unix

package servertest

import (
	"cmp"
	"fmt"
	"net"
	"strings"
)

// pgbouncerProgram is PgBouncer. max_prepared_statements came with 1.21.
var pgbouncerProgram = program{
	names:   []string{"pgbouncer"},
	places:  []string{"/usr/sbin", "/usr/local/bin", "/usr/local/sbin"},
	pkg:     "pgbouncer",
	env:     "DIBS_PGBOUNCER",
	service: "pgbouncer",
}

// PgBouncerOptions describes a PgBouncer. nil and the zero value mean transaction mode
// with the default settings.
type PgBouncerOptions struct {
	// Mode is pool_mode: "transaction", "session" or "statement"; "":
	// "transaction".
	Mode string
	// PoolSize is default_pool_size, the connections for each user and database. 0: 20.
	PoolSize int
	// Through is an address that leads to the server; "": the server's own.
	Through string
	// Settings are more lines of its configuration, which override the others:
	// "server_login_retry = 1".
	Settings []string
}

// A PgBouncerServer is a PgBouncer of a test. All users of its PostgreSQL server can use
// it with their passwords, and all databases. It stores nothing.
type PgBouncerServer struct {
	server
	backend *PostgresServer
}

// PgBouncer starts a PgBouncer in front of a server. It ends with its owner. It returns
// when the pooler answers. nil options mean the defaults.
func PgBouncer(owner Owner, backend *PostgresServer, o *PgBouncerOptions) *PgBouncerServer {
	owner.Helper()
	s, err := newPgBouncer(owner, backend, options(o))
	return started(owner, s, err)
}

// newPgBouncer makes the pooler's folder, configures it and starts it.
func newPgBouncer(owner Owner, backend *PostgresServer, o *PgBouncerOptions) (*PgBouncerServer, error) {
	path, err := pgbouncerProgram.find()
	if err != nil {
		return nil, err
	}
	s := &PgBouncerServer{backend: backend}
	if err := s.prepare(owner, "pgbouncer", "postgres"); err != nil {
		return nil, err
	}
	s.ready = s.accepts
	s.command.path, s.command.args = path, []string{"pgbouncer", s.folder.join("pgbouncer.ini")}
	s.command.env = []string{"LC_ALL=C", "TZ=UTC", "PATH=/usr/bin:/bin"}
	err = s.write(map[string]string{
		"pgbouncer.ini": o.config(s.folder, s.port, backend),
		"users":         quoteUser("postgres") + " " + quoteUser(backend.options.Password) + "\n",
	})
	if err != nil {
		return nil, err
	}
	return s, s.begin()
}

// config returns pgbouncer.ini of a pooler in the folder.
func (o *PgBouncerOptions) config(f *folder, at *port, backend *PostgresServer) string {
	method := "trust"
	if backend.options.Password != "" {
		method = "scram-sha-256"
	}
	host, to, _ := net.SplitHostPort(cmp.Or(o.Through, backend.Addr()))
	lines := []string{
		"[databases]",
		// Users that are not in the file are looked up in the database.
		"* = host=" + host + " port=" + to + " auth_user=postgres",
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		"listen_port = " + at.String(),
		"unix_socket_dir =",
		"auth_type = " + method,
		"auth_file = " + f.join("users"),
		"admin_users = postgres",
		"pool_mode = " + cmp.Or(o.Mode, "transaction"),
		fmt.Sprintf("default_pool_size = %d", cmp.Or(o.PoolSize, 20)),
		"max_client_conn = 1000",
	}
	return strings.Join(append(lines, o.Settings...), "\n") + "\n"
}

// quoteUser quotes a word of PgBouncer's file of users.
func quoteUser(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// URL returns the pooler's address with the superuser of the server behind it.
func (s *PgBouncerServer) URL() string { return s.URLAt(s.Addr()) }

// URLAt is URL with another address, that of a Wire to the pooler.
func (s *PgBouncerServer) URLAt(addr string) string {
	return postgresURL(addr, s.backend.options.Password)
}

// Do runs SQL through the pooler as PostgresServer.Do does.
func (s *PgBouncerServer) Do(sql string) ([][]string, error) {
	return s.backend.psql("127.0.0.1", s.port).query("postgres", sql)
}

// Query is Do, and ends the test after an error.
func (s *PgBouncerServer) Query(sql string) [][]string {
	s.owner.Helper()
	return s.rows(sql, s.Do)
}
