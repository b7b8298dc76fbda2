package sqllock

import (
	"os"
	"strings"
	"testing"
)

// TestReadme: what the README says of is there, and it is short.
func TestReadme(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{
		"`Advisory`", "`LockTx`", "`RubyKey`", "`Named`", "`Row`", "`Sequence`", "`Guard`", "`Transact`",
		"`ErrDeadlock`", "`ErrIsolation`", "`ErrPooler`", "`ErrServer`",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not have %q", want)
		}
	}
	if n := strings.Count(text, "\n"); n > 150 {
		t.Errorf("it has %d lines", n)
	}
}
