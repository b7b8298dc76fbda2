//go:build unix

package servertest

import (
	"cmp"
	"fmt"
	"strings"
)

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
