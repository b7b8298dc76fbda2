package mysqlstore

import (
	"os"
	"strings"
	"testing"
)

// TestReadme: the rights in the README are those that TestLeastRights tries, and every
// error, table and parameter is named.
func TestReadme(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
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
	for _, want := range want {
		if !strings.Contains(text, want) {
			t.Errorf("it does not have %q", want)
		}
	}
	if n := strings.Count(text, "\n"); n > 150 {
		t.Errorf("it has %d lines", n)
	}
}
