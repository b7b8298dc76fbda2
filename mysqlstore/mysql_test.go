//go:build nightly

package mysqlstore

import (
	"database/sql"
	"sync"

	"github.com/dibs-go/dibs/internal/servertest"
)

func init() {
	servers["MySQL"] = mysqld
	kinds["MySQL"] = kind{"", apart, sql.LevelDefault}
	kinds["MySQL, read committed"] = kind{"?clientFoundRows=true&autocommit=0", apart, sql.LevelReadCommitted}
	kinds["MySQL, several, repeated"] = kind{"?multiStatements=true&clientFoundRows=true", several, sql.LevelRepeatableRead}
	kinds["MySQL, several"] = kind{"?multiStatements=true", several, sql.LevelReadCommitted}
}

// mysqld is the MySQL of all tests that leave its settings alone.
var mysqld = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{MySQL: true, NoSync: true, MaxConnections: 600})
})
