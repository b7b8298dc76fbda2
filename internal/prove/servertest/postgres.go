//go:build unix

package servertest

import (
	"cmp"
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

// PostgresOptions describes a PostgreSQL server. nil and the zero value mean default
// settings, durable, without a password.
type PostgresOptions struct {
	// NoSync does not wait for the disk, for tests that do not measure. The end of the
	// processes loses nothing; a failure of the machine would.
	NoSync bool
	// MaxConnections is max_connections; 0: 100.
	MaxConnections int
	// Password is the password of "postgres" on TCP; "": no user needs one.
	Password string
	// Clock is the server's time of day; nil: the host's.
	Clock *Clock
	// Settings are more lines of postgresql.conf, which override the others:
	// "lock_timeout = 500ms".
	Settings []string
	// Standbys keeps what a server needs that has standbys or becomes one: the log of the last
	// changes, and what Rejoin needs.
	Standbys bool
	// StandbyOf starts a standby of that server, with a copy of its data; nil: a server with
	// data of its own. Both have the same password and MaxConnections.
	StandbyOf *PostgresServer
}

// config returns postgresql.conf of a server in the folder.
func (o *PostgresOptions) config(f *folder, at *port) string {
	lines := []string{
		"data_directory = " + quoteSetting(f.join("data")),
		"hba_file = " + quoteSetting(f.join("pg_hba.conf")),
		"ident_file = " + quoteSetting(f.join("pg_ident.conf")),
		"listen_addresses = '127.0.0.1'",
		"port = " + at.String(),
		"unix_socket_directories = " + quoteSetting(f.path),
		fmt.Sprintf("max_connections = %d", cmp.Or(o.MaxConnections, 100)),
		"huge_pages = off",
		// In the folder, so it is removed with it.
		"dynamic_shared_memory_type = mmap",
		"lc_messages = C",
		"log_timezone = UTC",
		"timezone = UTC",
	}
	if o.NoSync {
		lines = append(lines, "fsync = off", "full_page_writes = off")
	}
	if o.Standbys {
		lines = append(lines, "wal_retrieve_retry_interval = 100ms", "wal_receiver_status_interval = 1s")
		lines = append(lines, rewindable...)
	}
	return strings.Join(append(lines, o.Settings...), "\n") + "\n"
}

// rewindable are the settings that pg_rewind needs.
var rewindable = []string{"full_page_writes = on", "wal_log_hints = on", "wal_keep_size = 1GB"}

// access returns pg_hba.conf. Only the test uses the socket.
func (o *PostgresOptions) access() string {
	method := "trust"
	if o.Password != "" {
		method = "scram-sha-256"
	}
	var lines strings.Builder
	for _, database := range []string{"all", "replication"} {
		fmt.Fprintf(&lines, "local %s all trust\nhost %[1]s all 127.0.0.1/32 %s\n", database, method)
	}
	return lines.String()
}

// quoteSetting writes s as a value of a PostgreSQL configuration.
func quoteSetting(s string) string {
	return "'" + strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(s) + "'"
}

const (
	// fieldEnd and rowEnd separate psql's output. No test has them in a value.
	fieldEnd = "\x1f"
	rowEnd   = "\x1e"
)

// psql is PostgreSQL's command line client.
type psql struct{ client }

// newPsql returns a client of the superuser for PostgreSQL's protocol at host and port. bin is the
// folder of PostgreSQL's programs.
func newPsql(bin, host string, at *port, password string) *psql {
	return &psql{client{
		path: filepath.Join(bin, "psql"),
		args: []string{"-X", "-q", "-w", "-A", "-t", "-F", fieldEnd, "-R", rowEnd,
			"-v", "ON_ERROR_STOP=1", "-v", "SHOW_ALL_RESULTS=off", "-P", "null=NULL",
			"-h", host, "-p", at.String(), "-U", "postgres"},
		env: []string{"PGPASSWORD=" + password, "PGCONNECT_TIMEOUT=60", "PGSSLMODE=disable"},
	}}
}

// query returns the rows of the last statement.
func (c *psql) query(database, sql string) ([][]string, error) {
	out, err := c.run("-d", database, "-c", sql)
	if err != nil {
		return nil, err
	}
	// A newline follows the last row. Without rows there is no output.
	out, some := strings.CutSuffix(out, "\n")
	if !some {
		return nil, nil
	}
	var rows [][]string
	for row := range strings.SplitSeq(out, rowEnd) {
		rows = append(rows, strings.Split(row, fieldEnd))
	}
	return rows, nil
}

// copyPrimary replaces the data folder by a copy of the primary's, from which the server starts as
// its standby.
func (s *PostgresServer) copyPrimary() error {
	if err := removeSegment(s.folder.path); err != nil {
		return err
	}
	data, primary := s.folder.join("data"), s.options.StandbyOf
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	err := s.tool(s.folder.path, s.as, "pg_basebackup", "-D", data, "-d", primary.URL(), "-c", "fast", "--no-sync")
	if err != nil {
		return err
	}
	return s.standby(primary.Addr())
}

// standby has the server start as a standby that follows what is at an address.
func (s *PostgresServer) standby(addr string) error {
	// In the folder of data, so it is replaced with it. Its name tells the primary which standby it is.
	from := postgresURL(addr, s.options.Password) + "&application_name=standby" + s.port.String()
	follow := "primary_conninfo = " + quoteSetting(from) + "\n"
	if err := s.as.write(s.folder.join("data/postgresql.auto.conf"), follow); err != nil {
		return err
	}
	return s.as.write(s.folder.join("data/standby.signal"), "")
}

// Follow makes a standby follow what is at an address, such as a Wire to its primary.
func (s *PostgresServer) Follow(addr string) {
	s.owner.Helper()
	s.do("leading", func() error {
		if err := s.standby(addr); err != nil {
			return err
		}
		_, err := s.Do("SELECT pg_reload_conf()")
		return err
	})
}

// Promote makes a standby a primary with its data, as pg_ctl promote does, and returns when it
// takes writes.
func (s *PostgresServer) Promote() {
	s.owner.Helper()
	s.do("promoting", func() error {
		if err := s.tool(s.folder.path, s.as, "pg_ctl", "promote", "-w", "-D", s.folder.join("data")); err != nil {
			return err
		}
		// pg_rewind reads the new timeline from the control file, which has it after a checkpoint.
		_, err := s.Do("CHECKPOINT")
		return err
	})
}

// Rejoin makes a server that was the primary before a standby of the new one: pg_rewind takes
// back what only the old primary had done. It follows what is at addr, such as a Wire to the
// primary. A server that runs is killed first. Both need
// PostgresOptions.Standbys.
func (s *PostgresServer) Rejoin(primary *PostgresServer, addr string) {
	s.owner.Helper()
	s.do("rewinding", func() error {
		if err := s.proc.kill(); err != nil {
			return err
		}
		s.down = true
		if err := removeSegment(s.folder.path); err != nil {
			return err
		}
		// pg_rewind starts the server alone, without the configuration in the folder above.
		if err := s.as.write(s.folder.join("data/postgresql.auto.conf"), strings.Join(rewindable, "\n")+"\n"); err != nil {
			return err
		}
		err := s.tool(s.folder.path, s.as, "pg_rewind", "-D", s.folder.join("data"), "--no-sync", "--source-server="+primary.URL())
		if err != nil {
			return err
		}
		if err := s.standby(addr); err != nil {
			return err
		}
		return s.run()
	})
}

// Position returns how many bytes of its log a primary has on disk. The log has every change.
func (s *PostgresServer) Position() (int64, error) { return s.position("pg_current_wal_flush_lsn()") }

// Received returns how many bytes of its primary's log a standby has received that is cut off from
// it. So much it will have when it is promoted.
func (s *PostgresServer) Received() (int64, error) {
	err := await(func() error {
		rows, err := s.Do("SELECT count(*) FROM pg_stat_wal_receiver")
		if err == nil && rows[0][0] != "0" {
			err = errors.New("it continues to receive")
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return s.position("greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())")
}

func (s *PostgresServer) position(of string) (int64, error) {
	rows, err := s.Do("SELECT (" + of + " - '0/0')::bigint")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(rows[0][0], 10, 64)
}

// AwaitStandby returns when the server is a standby that has everything its primary had at the
// call, and the primary knows it.
func (s *PostgresServer) AwaitStandby(primary *PostgresServer) {
	s.owner.Helper()
	s.awaitStandby(primary.Position, func(wrote int64) error { return s.follows(primary, wrote) })
}

// follows returns nil when the primary says that the standby has on disk what it wrote until then.
func (s *PostgresServer) follows(primary *PostgresServer, wrote int64) error {
	rows, err := primary.Do(fmt.Sprintf(
		"SELECT (flush_lsn - '0/0')::bigint FROM pg_stat_replication WHERE application_name = 'standby%s' AND state = 'streaming'", s.port))
	if err != nil {
		return err
	}
	if len(rows) == 0 || rows[0][0] == "NULL" {
		return errors.New("the primary has no standby of that name")
	}
	got, err := strconv.ParseInt(rows[0][0], 10, 64)
	if err == nil && got < wrote {
		err = fmt.Errorf("%d bytes behind the primary", wrote-got)
	}
	return err
}
