//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// postgresProgram is PostgreSQL 14 or newer. Its other programs are beside it.
var postgresProgram = program{
	names:  []string{"postgres"},
	places: []string{"/usr/lib/postgresql/*/bin", "/usr/local/bin", "/usr/local/pgsql/bin"},
	pkg:    "postgresql",
	env:    "DIBS_POSTGRES",
	// The package would create a database and start it with the system.
	service:  "postgresql",
	settings: map[string]string{"/etc/postgresql-common/createcluster.conf": "create_main_cluster = false\n"},
}

// A PostgresServer is a PostgreSQL server of a test. Its superuser is "postgres". The
// database "postgres" exists from the start.
type PostgresServer struct {
	server
	bin     string // the folder of the programs
	options PostgresOptions
}

// Postgres starts a PostgreSQL server that ends with its owner, and returns when it
// answers. nil options mean the defaults.
//
// Kill ends all processes of the server and loses no committed transaction. Pause stops
// the processes of connections, too. Stop ends connections (a "fast" shutdown).
func Postgres(owner Owner, o *PostgresOptions) *PostgresServer {
	owner.Helper()
	s, err := newPostgres(owner, options(o))
	return started(owner, s, err)
}

// newPostgres makes the server's folder, configures it and starts it.
func newPostgres(owner Owner, o *PostgresOptions) (*PostgresServer, error) {
	path, err := postgresProgram.find()
	if err != nil {
		return nil, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, err
	}
	s := &PostgresServer{bin: filepath.Dir(path), options: *o}
	if err := s.prepare(owner, "postgres", "postgres"); err != nil {
		return nil, err
	}
	s.ready, s.wipe, s.asks = s.answers, s.wipeData, syscall.SIGINT // SIGTERM would wait for all clients
	if o.StandbyOf != nil {
		s.wipe = s.copyPrimary
	}
	s.command.path, s.command.args = path, []string{"postgres", "-c", "config_file=" + s.folder.join("postgresql.conf")}
	s.command.env = append([]string{"LC_ALL=C", "TZ=UTC", "PATH=" + s.bin + ":/usr/bin:/bin"}, o.Clock.env()...)
	s.command.family = true
	err = s.write(map[string]string{"postgresql.conf": o.config(s.folder, s.port), "pg_hba.conf": o.access(), "pg_ident.conf": ""})
	if err != nil {
		return nil, err
	}
	return s, s.beginEmpty()
}

// URL returns the server's address with its superuser:
// "postgres://postgres@127.0.0.1:4321/postgres?sslmode=disable".
func (s *PostgresServer) URL() string { return s.URLAt(s.Addr()) }

// URLAt is URL with another address, that of a Wire to the server.
func (s *PostgresServer) URLAt(addr string) string {
	return postgresURL(addr, s.options.Password)
}

func postgresURL(addr, password string) string {
	u := url.URL{Scheme: "postgres", Host: addr, Path: "/postgres", RawQuery: "sslmode=disable", User: url.User("postgres")}
	if password != "" {
		u.User = url.UserPassword("postgres", password)
	}
	return u.String()
}

// Do runs SQL with psql over the server's socket, and returns the rows of the last
// statement as text; NULL is "NULL". Several statements are one transaction. It may be
// called from any goroutine.
func (s *PostgresServer) Do(sql string) ([][]string, error) {
	return s.psql(s.folder.path, s.port).query("postgres", sql)
}

// Query is Do, and ends the test after an error.
func (s *PostgresServer) Query(sql string) [][]string {
	s.owner.Helper()
	return s.rows(sql, s.Do)
}

// psql returns a client of the superuser for PostgreSQL's protocol at host and port.
func (s *PostgresServer) psql(host string, at *port) *psql {
	return newPsql(s.bin, host, at, s.options.Password)
}

// answers returns nil when the server's own file says that it accepts connections. That
// costs no connection.
func (s *PostgresServer) answers() error {
	file, err := os.ReadFile(s.folder.join("data/postmaster.pid"))
	if err != nil {
		return err
	}
	lines := strings.Split(string(file), "\n")
	if len(lines) < 8 || lines[0] != strconv.Itoa(s.proc.pid) {
		return errors.New("has not begun") // the file is from an earlier start
	}
	if state := strings.TrimSpace(lines[7]); state != "ready" && state != "standby" {
		return errors.New("is " + state)
	}
	if s.options.Password == "" {
		return nil
	}
	_, err = s.Do("ALTER USER postgres PASSWORD " + quoteString(s.options.Password))
	if err != nil && strings.Contains(err.Error(), "read-only transaction") {
		return nil
	}
	return err
}

// wipeData replaces the data folder by a new one.
func (s *PostgresServer) wipeData() error {
	if err := removeSegment(s.folder.path); err != nil {
		return err
	}
	if err := os.RemoveAll(s.folder.join("data")); err != nil {
		return err
	}
	t := template{kind: "postgres", program: s.command.path, make: s.initdb}
	return t.copyTo(s.folder.join("data"), s.as)
}

// initdb creates a data folder.
func (s *PostgresServer) initdb(dir string, as *account) error {
	return s.tool(dir, as, "initdb", "-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
}

// tool runs one of PostgreSQL's programs in a folder.
func (s *PostgresServer) tool(dir string, as *account, name string, args ...string) error {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = dir
	cmd.Env = append(s.command.env[:len(s.command.env):len(s.command.env)], "PGPASSWORD="+s.options.Password)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// quoteString quotes s as a standard SQL string.
func quoteString(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
