package pgstore

import (
	"os"
	"strings"
	"testing"
)

// TestReadme: the rights in the README are those that TestCheck tries, and every
// error and parameter is named.
func TestReadme(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{
		strings.ReplaceAll(leastRights, "@", "own.dibs_"),
		strings.ReplaceAll(transactionRights, "@", "own.dibs_"),
		"`schema=`", "`prefix=`", "`migrate=true`", "`wake=auto|listen|poll`",
		"`ErrURL`", "`ErrUnreachable`", "`ErrUnsupported`", "`ErrUnauthorized`", "`ErrReadOnly`", "`ErrNotMigrated`", "`ErrNewer`",
		"`ErrCrowded`", "`ErrLocked`", "`store.ErrFull`",
		"`ErrAborted`", "`ErrTransactionEnded`", "`ErrOtherDatabase`", "`ErrOwnTransaction`",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not have %q", want)
		}
	}
	if n := strings.Count(text, "\n"); n > 150 {
		t.Errorf("it has %d lines", n)
	}
}
