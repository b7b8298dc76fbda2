//go:build unix

package servertest

import (
	"fmt"
	"strings"
)

// MariaDBOptions says what kind of MariaDB or MySQL server is wanted. nil and
// the zero value mean a MariaDB with its own settings, durable (each commit is
// synced), that asks for no password.
type MariaDBOptions struct {
	// MySQL has MySQL started in place of MariaDB.
	MySQL bool
	// NoSync spares the waits for the disk, for tests that do not measure: a
	// failure of the machine would lose data, the end of the process does not.
	NoSync bool
	// BinaryLog has the server write a binary log, in the row format, and sync
	// it with each commit unless NoSync says otherwise (sync_binlog = 1): what
	// a server costs that has replicas. Without it there is none.
	BinaryLog bool
	// MaxConnections is max_connections; 0: 151.
	MaxConnections int
	// Password is that of the user "root" on TCP; "": none.
	Password string
	// Clock is the time of day that the server sees; nil: the host's.
	Clock *Clock
	// Settings are more lines of my.cnf, which win over the rest:
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
		"character-set-server = utf8mb4",
	}
	if o.MySQL {
		// The second protocol would take a port that all servers share, and
		// Debian's folder for LOAD DATA comes with the service.
		lines = append(lines, "mysqlx = OFF", "secure-file-priv = NULL")
	}
	sync := 1
	if o.NoSync {
		// Written with each commit, and synced once a second.
		sync = 0
		lines = append(lines, "innodb_flush_log_at_trx_commit = 2", "innodb_doublewrite = OFF")
	}
	switch {
	case o.BinaryLog:
		lines = append(lines, "server-id = 1", "log-bin = binlog", "binlog_format = ROW", fmt.Sprintf("sync_binlog = %d", sync))
	case o.MySQL:
		lines = append(lines, "skip-log-bin")
	}
	if o.MaxConnections != 0 {
		lines = append(lines, fmt.Sprintf("max_connections = %d", o.MaxConnections))
	}
	return strings.Join(append(lines, o.Settings...), "\n") + "\n"
}

// firstSQL returns what the server carries out at each start, before it listens,
// one statement a line. By the socket root needs no password.
func (o *MariaDBOptions) firstSQL() string {
	password := quoteMariaDB(o.Password)
	return "CREATE DATABASE IF NOT EXISTS app;\n" +
		"CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n" +
		"ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY " + password + ";\n" +
		"GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
}

// quoteMariaDB writes s as a string of SQL, in one line.
func quoteMariaDB(s string) string {
	return "'" + strings.NewReplacer(`'`, `''`, `\`, `\\`, "\n", `\n`).Replace(s) + "'"
}
