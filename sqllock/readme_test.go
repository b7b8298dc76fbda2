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
		"`Advisory`", "`Session`", "`LockTx`", "`LockTxPgx`", "`RubyKey`", "`Named`", "`Row`", "`Sequence`", "`Guard`", "`Transact`",
		"`ErrDeadlock`", "`ErrPooler`", "`ErrServer`",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not have %q", want)
		}
	}
	if !strings.Contains(sessionSQL, "SET statement_timeout = 0") {
		t.Error("a Session does not turn its statement_timeout off")
	}
	// The settings that it names are those that a Session makes.
	for _, setting := range []string{"tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 4", "tcp_user_timeout = 30000"} {
		if !strings.Contains(sessionSQL, "SET "+setting) || !strings.Contains(text, setting) {
			t.Errorf("%s is not in both", setting)
		}
	}
	if n := strings.Count(text, "\n"); n > 150 {
		t.Errorf("it has %d lines", n)
	}
}
