//go:build nightly

package sqllock

import (
	"database/sql"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

// mysql8 is the MySQL of all tests.
var mysql8 = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{MySQL: true, NoSync: true, MaxConnections: 500})
})

func init() {
	databases["mysql"] = database{
		d: MySQL, open: func(t testing.TB) *sql.DB { return mariadbDB(t, mysql8(), "") }, session: "SELECT CONNECTION_ID()",
		kill: func(id int64) error { return killMySQL(mysql8(), id) },
	}
	namedServers["MySQL"] = mysql8
}
