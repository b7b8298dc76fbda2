//go:build unix

package command_test

import (
	"strings"
	"testing"
)

// TestServers: a key is held, shown and released on each kind of server. The nightly tests run
// every test on servers too.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, k := range servers {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			b := k.fresh(t)
			for _, step := range []struct {
				args string
				code int
				says string
			}{
				{"migrate", 0, ""},
				{"run --once-per=1h k -- touch ran", 0, ""},
				{"run --once-per=1h k -- touch again", 0, "succeeded"},
				{"ls --state done", 0, "done"},
				{"forget k --yes", 0, "k is forgotten"},
				{"show k", 1, "the store has no record, holder or waiter of the key k"},
			} {
				code, stdout, stderr := b.run(t, strings.Fields(step.args)...)
				if code != step.code || !strings.Contains(stdout+stderr, step.says) {
					t.Errorf("%s: %d, %s%s", step.args, code, stdout, stderr)
				}
			}
			if !b.exists("ran") || b.exists("again") {
				t.Errorf("it ran: %v; again: %v", b.exists("ran"), b.exists("again"))
			}
		})
	}
}
