package command_test

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// TestColours: on a terminal a state that needs somebody has a colour. NO_COLOR and a pipe have none.
func TestColours(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s, err := sqlitestore.Open(b.path("dibs.db"), nil)
	testkit.Must(t, err)
	client, err := dibs.New(s, nil)
	testkit.Must(t, err)
	for key, once := range map[string]bool{"é-charge": true, "sync": false} {
		lease, err := client.Acquire(t.Context(), key, &dibs.AcquireOptions{AtMostOnce: once})
		testkit.Must(t, err)
		testkit.Must(t, lease.Abandon(t.Context()))
	}
	testkit.Must(t, client.Close())
	testkit.Must(t, s.Close())
	const unknown, abandoned = "\x1b[31munknown\x1b[0m", "\x1b[33mabandoned\x1b[0m"
	onTerminal := func(env string, args ...string) string {
		t.Helper()
		keyboard, terminal := openTerminal(t)
		p := b.command(args...)
		p.Env = append(p.Environ(), "TERM=xterm", env)
		p.Stdout = terminal
		p.begin(t)
		if code := p.code(t); code != 0 {
			t.Errorf("%q ended with %d", args, code)
		}
		// What was written is there now, and the terminal stays open.
		text := make([]byte, 1<<16)
		n, err := keyboard.Read(text)
		testkit.Must(t, err)
		testkit.Must(t, terminal.Close())
		return string(text[:n])
	}
	text := onTerminal("A=b", "ls")
	if strings.Count(text, "\x1b[") != 4 || !strings.Contains(text, " "+unknown+" ") || !strings.Contains(text, " "+abandoned+" ") {
		t.Errorf("ls prints %q", text)
	}
	if text := onTerminal("A=b", "show", "é-charge"); !strings.Contains(text, "\x1b[31munknown: it may") {
		t.Errorf("show prints %q", text)
	}
	for _, env := range []string{"NO_COLOR=1", "TERM=dumb"} {
		if text := onTerminal(env, "ls"); strings.Contains(text, "\x1b") || !strings.Contains(text, "unknown") {
			t.Errorf("with %s ls prints %q", env, text)
		}
	}
	if code, stdout, _ := b.run(t, "ls"); code != 0 || strings.Contains(stdout, "\x1b") {
		t.Errorf("a pipe gets %q", stdout)
	}
}
