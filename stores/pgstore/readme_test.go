package pgstore

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
