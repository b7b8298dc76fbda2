//go:build unix

package servertest

import (
	"cmp"
	"fmt"
	"strings"
)

// PostgresOptions says what kind of PostgreSQL server is wanted. nil and the
// zero value mean one with the server's own settings, durable, that asks for no
// password.
type PostgresOptions struct {
	// NoSync spares the waits for the disk, for tests that do not measure: a
	// failure of the machine would lose data, the end of the processes does
	// not.
	NoSync bool
	// MaxConnections is max_connections; 0: 100.
	MaxConnections int
	// Password is that of the user "postgres", asked for on TCP; "": none is
	// asked for from anybody.
	Password string
	// Clock is the time of day that the server sees; nil: the host's.
	Clock *Clock
	// Settings are more lines of postgresql.conf, which win over the rest:
	// "lock_timeout = 500ms".
	Settings []string
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
		// In the folder, so that it goes with it.
		"dynamic_shared_memory_type = mmap",
		"lc_messages = C",
		"log_timezone = UTC",
		"timezone = UTC",
	}
	if o.NoSync {
		lines = append(lines, "fsync = off", "full_page_writes = off")
	}
	return strings.Join(append(lines, o.Settings...), "\n") + "\n"
}

// access returns pg_hba.conf: who comes by the socket is the test.
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
