package pgstore

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
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
