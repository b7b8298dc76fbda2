package mysqlstore

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root, house.Root + "/store", house.Root + "/store/storekit", house.Root + "/store/engine", house.Root + "/store/remote", house.Root + "/internal/errtype", house.Root + "/internal/product", "github.com/go-sql-driver/mysql"},
		Tests: []string{
			house.Root + "/idempotency", house.Root + "/store/storetest", house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house",
			house.Root + "/internal/prove/servertest", house.Root + "/stores/internal/sqltest",
		},
	}})
}

// TestReadme: the rights in the README are those that TestEveryRight tries, and every
// error, table and parameter is named.
func TestReadme(t *testing.T) {
	t.Parallel()
	want := []string{
		strings.ReplaceAll(leastRights, "@", "dibs_"),
		strings.ReplaceAll(transactionRights, "@", "dibs_"),
		"`prefix=`", "`migrate=true`", "`tls=true|false|preferred|skip-verify`", "`tls-ca=`", "`socket=`",
		"`ErrURL`", "`ErrUnreachable`", "`ErrUnsupported`", "`ErrUnauthorized`", "`ErrReadOnly`", "`ErrNotMigrated`", "`ErrNewer`",
		"`ErrCrowded`", "`ErrLocked`", "`ErrClosed`", "`store.ErrFull`",
		"`ErrTransactionEnded`", "`ErrOtherDatabase`",
	}
	for _, name := range tables {
		want = append(want, "| `dibs_"+name+"` |")
	}
	house.Readme(t, 150, want...)
}
