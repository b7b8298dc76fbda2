//go:build nightly

package mysqlstore

import (
	"database/sql"
	"sync"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

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
