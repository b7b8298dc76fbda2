//go:build nightly

package mysqlstore

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

func TestConformanceOnMySQL(t *testing.T) {
	t.Parallel() // it mostly waits
	conform(t, mysqld, servertest.MariaDBOptions{MySQL: true, NoSync: true})
}

// TestProductMySQL: MySQL is known by what it says itself.
func TestProductMySQL(t *testing.T) {
	t.Parallel()
	sqltest.FindsProduct(t, open(t, mysqld().URL(), &Options{Prefix: testkit.Own()}), "", "")
}

func init() {
	servers["MySQL"] = mysqld
	kinds["MySQL"] = kind{"", sql.LevelDefault}
	kinds["MySQL, read committed"] = kind{"?clientFoundRows=true&autocommit=0", sql.LevelReadCommitted}
	kinds["MySQL, repeated"] = kind{"?multiStatements=true&clientFoundRows=true", sql.LevelRepeatableRead}
}

// mysqld is the MySQL of all tests that leave its settings alone.
var mysqld = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{MySQL: true, NoSync: true, MaxConnections: 600})
})

func TestStorm(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		suite(server).Storm(t)
	})
}

// TestGaleraIsRefused: no store opens on a node of a Galera cluster, and none makes its tables there.
func TestGaleraIsRefused(t *testing.T) {
	t.Parallel()
	for i, node := range servertest.Galera(t, &servertest.MariaDBOptions{NoSync: true}) {
		o := &Options{Prefix: testkit.Own(), Migrate: true}
		s, err := Open(t.Context(), node.URL(), o)
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "it is a Galera cluster: each node has its own row locks") {
			t.Errorf("node %d: %v, %v", i, s, err)
		}
		if rows := node.Query("SHOW TABLES LIKE '" + o.Prefix + "%'"); len(rows) > 0 {
			t.Errorf("node %d has the tables %v", i, rows)
		}
	}
}

// TestServerOfNoCluster: a server whose configuration could make it a node, and that has joined no
// cluster, is a server like any other.
func TestServerOfNoCluster(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true, Settings: []string{"wsrep_on = ON"}})
	s, err := Open(t.Context(), server.URL(), &Options{Migrate: true})
	testkit.Must(t, err)
	testkit.Check(t, s.Close())
}

// notFlipped are variables that end the server or its sessions, or fill its log.
var notFlipped = []string{
	"wait_timeout", "interactive_timeout", "idle_transaction_timeout", "idle_readonly_transaction_timeout", "idle_write_transaction_timeout", // a second ends each session
	"net_read_timeout", "net_write_timeout", "max_allowed_packet", "net_buffer_length", "max_user_connections", "max_statement_time", // in flips, or a packet cannot be sent
	"debug_no_thread_alarm", "log_warnings", "log_slow_query", "slow_query_log", "profiling", "max_session_mem_used", // less memory than a session needs
	"tx_read_only", "transaction_read_only", "tx_isolation", "transaction_isolation", // in flips
	"sql_select_limit", "completion_type", "autocommit", // in flips; with 0 rows, see TestNoRows
	"innodb_lock_wait_timeout", "lock_wait_timeout", // of an application's session: it gives up at once
}

// TestInheritedAll is TestInherited with every variable of the server that a session inherits, each
// with its other values, or its least and its greatest.
func TestInheritedAll(t *testing.T) {
	t.Parallel()
	n := inheritor(t, "MariaDB")
	rows := n.server.Query("SELECT LOWER(variable_name), variable_type, COALESCE(enum_value_list, ''), COALESCE(numeric_min_value, ''), COALESCE(numeric_max_value, '')" +
		" FROM information_schema.system_variables WHERE variable_scope = 'SESSION' AND read_only = 'NO' AND global_value IS NOT NULL")
	tried := 0
	for _, row := range rows {
		name, values := row[0], strings.Split(row[2], ",")
		if slices.Contains(notFlipped, name) {
			continue
		}
		switch row[1] {
		case "BOOLEAN":
			values = []string{"0", "1"}
		case "ENUM":
			values = slices.DeleteFunc(values, func(v string) bool { return v == "" })
		case "SET", "FLAGSET":
			continue // sql_mode and optimizer_switch are in flips
		case "VARCHAR":
			continue // character sets and locales: sessions are utf8mb4, see odd
		default:
			values = []string{row[3], row[4]}
		}
		for _, value := range values {
			f := flip{name, "'" + value + "'"}
			if row[1] != "ENUM" {
				f.value = value
			}
			err := n.try(t, f)
			if tried++; errors.Is(err, errNotSet) {
				t.Logf("%s = %s: %v", name, value, err)
			} else if err != nil {
				t.Errorf("%s = %s: %v", name, value, err)
			}
		}
	}
	if tried < 100 {
		t.Errorf("%d were tried", tried)
	}
}
