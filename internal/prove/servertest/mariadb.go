//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The packages named core have the programs without a service.
var (
	// mariadbProgram is MariaDB 10.6 or newer.
	mariadbProgram = program{
		names:  []string{"mariadbd"},
		places: []string{"/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/local/mysql/bin"},
		pkg:    "mariadb-server-core",
		env:    "DIBS_MARIADB",
	}
	// mariadbInstallProgram creates its data folder.
	mariadbInstallProgram = program{
		names:  []string{"mariadb-install-db"},
		places: []string{"/usr/bin", "/usr/local/bin", "/usr/local/mysql/scripts"},
		pkg:    "mariadb-server-core",
	}
	// mysqlProgram is MySQL 8.0 or newer. No release of Debian has it.
	mysqlProgram = program{
		names:  []string{"mysqld"},
		not:    "mariadbd",
		places: append(mariadbProgram.places[:len(mariadbProgram.places):len(mariadbProgram.places)], mysqlUnpacking.dir),
		pkg:    "mysql-server-core-8.0",
		env:    "DIBS_MYSQL",

		unpacking: &mysqlUnpacking,
	}
	// mysqlUnpacking unpacks it into a folder that every user can read.
	mysqlUnpacking = unpacking{
		pkg: "mysql-server-core",
		dir: "/var/cache/dibs/servertest/mysql",
		bin: "usr/sbin/mysqld",
	}
	// mariadbClientProgram is the command line client of both.
	mariadbClientProgram = program{
		names:  []string{"mariadb", "mysql"},
		places: []string{"/usr/bin", "/usr/local/bin", "/usr/local/mysql/bin"},
		pkg:    "mariadb-client-core",
	}
)

// A MariaDBServer is a MariaDB or MySQL server of a test. Its superuser is "root". The
// database "app" exists from the start.
type MariaDBServer struct {
	server
	client  client
	options MariaDBOptions
	wiped   int // how often Rejoin has begun without the data
}

// MariaDB starts a MariaDB server that ends with its owner, and returns when it answers.
// nil options mean the defaults. Kill loses no committed transaction.
func MariaDB(owner Owner, o *MariaDBOptions) *MariaDBServer {
	owner.Helper()
	s, err := newMariaDB(owner, options(o))
	return started(owner, s, err)
}

// newMariaDB makes the server's folder, configures it and starts it.
func newMariaDB(owner Owner, o *MariaDBOptions) (*MariaDBServer, error) {
	s, err := makeMariaDB(owner, o)
	if err != nil {
		return nil, err
	}
	return s, s.beginEmpty()
}

// makeMariaDB makes the server's folder without data, and configures it.
func makeMariaDB(owner Owner, o *MariaDBOptions) (*MariaDBServer, error) {
	program, kind := &mariadbProgram, "mariadb"
	if o.MySQL {
		program, kind = &mysqlProgram, "mysql"
	}
	path, err := program.find()
	if err != nil {
		return nil, err
	}
	asker, err := mariadbClientProgram.find()
	if err != nil {
		return nil, err
	}
	s := &MariaDBServer{options: *o}
	if err := s.prepare(owner, kind, "mysql"); err != nil {
		return nil, err
	}
	f := s.folder
	s.client = client{path: asker, args: []string{
		"--no-defaults", "--batch", "--skip-column-names", "--default-character-set=utf8mb4",
		"--socket=" + f.join("socket"), "--user=root", "--database=app",
	}}
	s.ready, s.wipe = s.answers, s.wipeData
	s.command.path, s.command.args = path, []string{path, "--defaults-file=" + f.join("my.cnf")} // the server finds its files by its path
	s.command.env = append([]string{"LC_ALL=C", "TZ=UTC", "PATH=/usr/bin:/bin"}, o.Clock.env()...)
	return s, s.write(map[string]string{"my.cnf": o.config(f, s.port), "init.sql": o.firstSQL()})
}

// URL returns the server's address with its superuser:
// "mysql://root:secret@127.0.0.1:4321/app".
func (s *MariaDBServer) URL() string { return s.URLAt(s.Addr()) }

// URLAt is URL with another address, that of a Wire to the server.
func (s *MariaDBServer) URLAt(addr string) string {
	u := url.URL{Scheme: "mysql", Host: addr, Path: "/app", User: url.User("root")}
	if s.options.Password != "" {
		u.User = url.UserPassword("root", s.options.Password)
	}
	return u.String()
}

// DSN returns URL in the form of the Go driver for MySQL, without parameters:
// "root:secret@tcp(127.0.0.1:4321)/app". The password is not escaped.
func (s *MariaDBServer) DSN() string { return s.DSNAt(s.Addr()) }

// DSNAt is DSN with another address, that of a Wire to the server.
func (s *MariaDBServer) DSNAt(addr string) string {
	user := "root"
	if s.options.Password != "" {
		user += ":" + s.options.Password
	}
	return user + "@tcp(" + addr + ")/app"
}

// Do runs SQL in the database "app", with the command line client over the server's
// socket. It returns the rows of all statements as text; NULL is "NULL". It may be called
// from any goroutine.
func (s *MariaDBServer) Do(sql string) ([][]string, error) {
	out, err := s.client.run("--execute=" + sql)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for line := range strings.Lines(out) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		for i, field := range fields {
			fields[i] = unescape.Replace(field)
		}
		rows = append(rows, fields)
	}
	return rows, nil
}

// unescape undoes the client's escapes.
var unescape = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\0`, "\x00", `\\`, `\`)

// Query is Do, and ends the test after an error.
func (s *MariaDBServer) Query(sql string) [][]string {
	s.owner.Helper()
	return s.rows(sql, s.Do)
}

// answers returns nil when the server sends its greeting.
func (s *MariaDBServer) answers() error {
	conn, err := net.DialTimeout("tcp", s.Addr(), waitLimit)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		return err
	}
	// Length and number of the packet, and then the version of the protocol, or
	// 255 in an error such as too many connections.
	head := make([]byte, 5)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if head[4] != 10 && head[4] != 255 {
		return permanentError{fmt.Errorf("the listener is not a MySQL server: % x", head)}
	}
	return nil
}

// wipeData replaces the data folder by a new one.
func (s *MariaDBServer) wipeData() error {
	if err := os.RemoveAll(s.folder.join("data")); err != nil {
		return err
	}
	t := template{kind: "mariadb", program: s.command.path, make: s.installDB}
	if s.options.MySQL {
		t.kind, t.make = "mysql", s.initialize
	}
	return t.copyTo(s.folder.join("data"), s.as)
}

// installDB creates a data folder of MariaDB.
func (s *MariaDBServer) installDB(dir string, as *account) error {
	path, err := mariadbInstallProgram.find()
	if err != nil {
		return err
	}
	// It runs the server below the base.
	base := filepath.Dir(filepath.Dir(s.command.path))
	return s.setUp(as, path, "--no-defaults", "--basedir="+base, "--datadir="+dir,
		"--auth-root-authentication-method=normal", "--skip-name-resolve", "--skip-test-db")
}

// initialize creates a data folder of MySQL.
func (s *MariaDBServer) initialize(dir string, as *account) error {
	return s.setUp(as, s.command.path, "--no-defaults", "--initialize-insecure", "--datadir="+dir)
}

func (s *MariaDBServer) setUp(as *account, path string, args ...string) error {
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.Env = s.command.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(path), err, out)
	}
	return nil
}

// MariaDBOptions describes a MariaDB or MySQL server. nil and the zero value mean MariaDB
// with its default settings, durable (each commit is synced), without a password.
type MariaDBOptions struct {
	// MySQL starts MySQL instead of MariaDB.
	MySQL bool
	// NoSync does not wait for the disk, for tests that do not measure. The end of the
	// process loses nothing; a failure of the machine would.
	NoSync bool
	// BinaryLog writes a binary log in row format, as a server with replicas does. It is
	// synced with each commit (sync_binlog = 1) unless NoSync is set. Default: no log.
	BinaryLog bool
	// Replicas gives a MariaDB what it needs to have replicas, or to become one: BinaryLog, and a
	// number of its own.
	Replicas bool
	// SemiSync waits with each commit until a replica has it, however long that takes
	// (AFTER_SYNC). It needs Replicas.
	SemiSync bool
	// MaxConnections is max_connections; 0: 151.
	MaxConnections int
	// Password is the password of "root" on TCP; "": none.
	Password string
	// Clock is the server's time of day; nil: the host's.
	Clock *Clock
	// Settings are more lines of my.cnf, which override the others:
	// "innodb_lock_wait_timeout = 5".
	Settings []string
}

// config returns my.cnf of a server in the folder.
func (o *MariaDBOptions) config(f *folder, at *port) string {
	lines := []string{
		"[mysqld]",
		"datadir = " + f.join("data"),
		"socket = " + f.join("socket"),
		"pid-file = " + f.join("pid"),
		"tmpdir = " + f.path,
		"init-file = " + f.join("init.sql"),
		"bind-address = 127.0.0.1",
		"port = " + at.String(),
		"skip-name-resolve",
		// A client may pause while it connects. The default is 10 s.
		"connect-timeout = 60",
		"character-set-server = utf8mb4",
	}
	if o.MySQL {
		// The X protocol would use a port that all servers share. Debian's folder for
		// LOAD DATA belongs to the service.
		lines = append(lines, "mysqlx = OFF", "secure-file-priv = NULL")
	}
	sync := 1
	if o.NoSync {
		// Written with each commit, and synced once a second.
		sync = 0
		lines = append(lines, "innodb_flush_log_at_trx_commit = 2", "innodb_doublewrite = OFF")
	}
	if o.Replicas {
		lines = append(lines, "log_slave_updates = ON", "report-port = "+at.String())
	}
	if o.SemiSync {
		lines = append(lines, "rpl_semi_sync_master_enabled = ON", "rpl_semi_sync_slave_enabled = ON",
			"rpl_semi_sync_master_wait_point = AFTER_SYNC", "rpl_semi_sync_master_timeout = 1000000000")
	}
	id := "1"
	if o.Replicas {
		id = at.String()
	}
	switch {
	case o.BinaryLog, o.Replicas:
		lines = append(lines, "server-id = "+id, "log-bin = binlog", "binlog_format = ROW", fmt.Sprintf("sync_binlog = %d", sync))
	case o.MySQL:
		lines = append(lines, "skip-log-bin")
	}
	if o.MaxConnections != 0 {
		lines = append(lines, fmt.Sprintf("max_connections = %d", o.MaxConnections))
	}
	return strings.Join(append(lines, o.Settings...), "\n") + "\n"
}

// firstSQL returns the statements that the server runs at each start before it listens,
// one per line. Over the socket, root needs no password.
func (o *MariaDBOptions) firstSQL() string {
	password := quoteMariaDB(o.Password)
	first := ""
	if o.Replicas { // each server does this for itself, before it has a replica
		first = "SET SESSION sql_log_bin = 0;\n"
	}
	return first + "CREATE DATABASE IF NOT EXISTS app;\n" +
		"CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n" +
		"ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY " + password + ";\n" +
		"GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
}

// quoteMariaDB quotes s as an SQL string on one line.
func quoteMariaDB(s string) string {
	return "'" + strings.NewReplacer(`'`, `''`, `\`, `\\`, "\n", `\n`).Replace(s) + "'"
}

// Follow makes a MariaDB a replica of what is at an address, such as a Wire to its primary. It
// takes from there all that it does not have.
func (s *MariaDBServer) Follow(addr string) {
	s.owner.Helper()
	s.do("leading", func() error { return s.follow(addr) })
}

func (s *MariaDBServer) follow(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	// What a replica applies must not wait for replicas of its own.
	if err := s.configure("rpl_semi_sync_master_enabled = OFF"); err != nil {
		return err
	}
	_, err = s.Do("STOP SLAVE; SET GLOBAL read_only = 1; SET GLOBAL rpl_semi_sync_master_enabled = 0;" +
		"CHANGE MASTER TO MASTER_HOST = " + quoteMariaDB(host) + ", MASTER_PORT = " + port + ", MASTER_USER = 'root', MASTER_PASSWORD = " +
		quoteMariaDB(s.options.Password) + ", MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1; START SLAVE")
	return err
}

// configure writes the configuration for the next start, with more lines. A server that was wiped has
// a new number, because a replica passes over what has its own.
func (s *MariaDBServer) configure(more ...string) error {
	number, err := strconv.Atoi(s.port.String())
	if err != nil {
		return err
	}
	more = append(more, fmt.Sprintf("server-id = %d", number+s.wiped<<16))
	return s.as.write(s.folder.join("my.cnf"), s.options.config(s.folder, s.port)+strings.Join(more, "\n")+"\n")
}

// Received returns the number of the last transaction that a replica has received. It stops
// receiving.
func (s *MariaDBServer) Received() (int64, error) {
	pos, err := s.received()
	if err != nil {
		return 0, err
	}
	return number(pos)
}

func (s *MariaDBServer) received() (string, error) {
	if _, err := s.Do("STOP SLAVE IO_THREAD"); err != nil {
		return "", err
	}
	return s.status("Gtid_IO_Pos")
}

// status returns a field of SHOW SLAVE STATUS.
func (s *MariaDBServer) status(field string) (string, error) {
	out, err := s.client.run("--execute=SHOW SLAVE STATUS\\G", "--column-names")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", errors.New("it is not a replica")
}

// Promote makes a replica a primary with all that it has received.
func (s *MariaDBServer) Promote() {
	s.owner.Helper()
	s.do("promoting", func() error {
		pos, err := s.received()
		if err != nil {
			return err
		}
		rows, err := s.Do(fmt.Sprintf("SELECT MASTER_GTID_WAIT(%s, %d)", quoteMariaDB(pos), int(waitLimit.Seconds())))
		if err == nil && rows[0][0] != "0" {
			err = fmt.Errorf("it does not apply what it has received, up to %s", pos)
		}
		if err == nil {
			err = s.configure()
		}
		if err == nil {
			_, err = s.Do(fmt.Sprintf("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL rpl_semi_sync_master_enabled = %t; SET GLOBAL read_only = 0", s.options.SemiSync))
		}
		return err
	})
}

// Rejoin makes a server that was the primary before a replica of the new one. It begins without its
// data, because what only it had cannot be taken back, and takes everything from addr, such as a
// Wire to the primary. A server that runs is killed first.
func (s *MariaDBServer) Rejoin(_ *MariaDBServer, addr string) {
	s.owner.Helper()
	s.do("rejoining", func() error {
		if err := s.proc.kill(); err != nil {
			return err
		}
		s.down = true
		if err := s.wipe(); err != nil {
			return err
		}
		s.wiped++
		if err := s.configure(); err != nil {
			return err
		}
		if err := s.run(); err != nil {
			return err
		}
		return s.follow(addr)
	})
}

// Position returns the number of the last transaction in a primary's log.
func (s *MariaDBServer) Position() (int64, error) {
	rows, err := s.Do("SELECT @@gtid_binlog_pos")
	if err != nil {
		return 0, err
	}
	return number(rows[0][0])
}

// number returns the number of a transaction, "0-1-42".
func number(gtid string) (int64, error) {
	if gtid == "" {
		return 0, nil
	}
	return strconv.ParseInt(gtid[strings.LastIndex(gtid, "-")+1:], 10, 64)
}

// AwaitStandby returns when the server is a replica that has everything its primary had at the
// call.
func (s *MariaDBServer) AwaitStandby(primary *MariaDBServer) {
	s.owner.Helper()
	s.awaitStandby(primary.Position, s.follows)
}

// follows returns nil when the replica has what its primary wrote until then.
func (s *MariaDBServer) follows(wrote int64) error {
	for _, field := range []string{"Last_IO_Error", "Last_SQL_Error"} {
		if wrong, err := s.status(field); err != nil || strings.Contains(wrong, "binary log") || field == "Last_SQL_Error" && wrong != "" {
			return permanentError{errors.Join(errors.New("it does not follow: "+wrong), err)}
		}
	}
	if running, err := s.status("Slave_IO_Running"); err != nil || running != "Yes" {
		return errors.Join(errors.New("its receiver is "+running), err)
	}
	pos, err := s.status("Gtid_IO_Pos")
	if err != nil {
		return err
	}
	got, err := number(pos)
	if err == nil && got < wrote {
		err = fmt.Errorf("%d transactions behind the primary", wrote-got)
	}
	return err
}
