//go:build unix

package servertest

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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
