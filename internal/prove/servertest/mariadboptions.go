//go:build unix

package servertest

import (
	"fmt"
	"strings"
)

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
