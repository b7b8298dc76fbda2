package mysqlstore

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// TestReadme: the rights in the README are those that TestLeastRights tries, and every
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
