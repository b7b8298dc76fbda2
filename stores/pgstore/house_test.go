package pgstore

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root, house.Root + "/store", house.Root + "/store/storekit", house.Root + "/store/engine", house.Root + "/store/remote", house.Root + "/internal/errtype", house.Root + "/internal/suggest", house.Root + "/internal/backoff", house.Root + "/internal/product", "github.com/jackc/pgx/v5/..."},
		Tests: []string{
			house.Root + "/store/storetest", house.Root + "/internal/prove/bysql", house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house",
			house.Root + "/internal/prove/servertest", house.Root + "/stores/internal/sqltest", house.Root + "/internal/prove/wire",
		},
	}})
}

// TestReadme: the rights in the README are those that TestCheck tries, and every
// error and parameter is named.
func TestReadme(t *testing.T) {
	t.Parallel()
	house.Readme(t, 150,
		strings.ReplaceAll(leastRights, "@", "own.dibs_"),
		strings.ReplaceAll(transactionRights, "@", "own.dibs_"),
		strings.ReplaceAll(leaseRights, "@", "own.dibs_"),
		"`schema=`", "`prefix=`", "`migrate=true`", "`wake=auto|listen|poll`",
		"`ErrURL`", "`ErrUnreachable`", "`ErrUnsupported`", "`ErrUnauthorized`", "`ErrReadOnly`", "`ErrNotMigrated`", "`ErrNewer`",
		"`ErrCrowded`", "`ErrLocked`", "`store.ErrFull`",
		"`ErrAborted`", "`ErrTransactionEnded`", "`ErrOtherDatabase`", "`ErrOwnTransaction`",
	)
}

// TestLeasePage: the page about leases by SQL has the program that is tested, and the rights.
func TestLeasePage(t *testing.T) {
	t.Parallel()
	page := string(testkit.ReadFile(t, "../../docs/guides/leases-by-sql.md"))
	_, cured, _ := strings.Cut(string(testkit.ReadFile(t, "../../examples/python/leader.py")), "def cured")
	cured, _, _ = strings.Cut(cured, "\n\n\n")
	grants := strings.NewReplacer("SCHEMA own", "SCHEMA public", "@", "dibs_").Replace(leaseRights)
	for _, text := range []string{"def cured" + cured, grants} {
		if !strings.Contains(page, text) {
			t.Errorf("the page does not have %q", text)
		}
	}
}

// NewDatabase returns the URL of a database for one test.
func NewDatabase() string { return ownDatabase(shared()) }
