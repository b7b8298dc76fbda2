//go:build nightly

package main

import (
	"strings"
	"testing"
)

// unusable is a store that cannot be used, and the message about it.
type unusable struct{ url, names, says string }

// idle returns an origin that must get no request.
func idle(t *testing.T) *counter {
	t.Helper()
	origin := newCounter(t, nil)
	t.Cleanup(func() { // when all below have ended
		if origin.total() != 0 {
			t.Error("something ran")
		}
	})
	return origin
}

// addr returns the address of the origin.
func (c *counter) addr() string { return strings.TrimPrefix(c.URL, "http://") }

// checkUnusable: a store that cannot be used ends every command with 69, and a line that
// names the server without its password. Nothing runs.
func checkUnusable(t *testing.T, origin *counter, all map[string]unusable) {
	for name, test := range all {
		for _, args := range [][]string{
			{"proxy", "--listen", "127.0.0.1:0", "--upstream", origin.URL},
			{"run", "k", "--", "touch", "ran"},
			{"ls"},
			{"forget", "k", "--yes"},
			{"doctor"},
			{"demo", "--exit"},
		} {
			t.Run(args[0]+" "+name, func(t *testing.T) {
				t.Parallel()
				// Flags come before the key and the command.
				args := append([]string{args[0], "--store", test.url}, args[1:]...)
				code, stdout, stderr := run(t, args...)
				quiet := stdout == "" || args[0] == "doctor" // which says that the URL is an argument
				if code != 69 || !quiet || !strings.Contains(stderr, test.names) || !strings.Contains(stderr, test.says) {
					t.Errorf("%d %q %q; want %q", code, stdout, stderr, test.says)
				}
				if strings.Count(stderr, "\n") != 1 {
					t.Errorf("it is not a line: %q", stderr)
				}
				if strings.Contains(stdout+stderr, secret) {
					t.Errorf("the password is in %q %q", stdout, stderr)
				}
			})
		}
	}
}

// checkReplica: a command that writes is refused by a server that takes no writes. A command that
// changes nothing may use one.
func checkReplica(t *testing.T, url string) {
	t.Helper()
	code, stdout, stderr := run(t, "run", "--store", url, "k", "--", "touch", "ran")
	if code != 69 || stdout != "" || !strings.Contains(stderr, "takes no writes") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("run on a replica: %d %q %q", code, stdout, stderr)
	}
	if code, _, stderr := run(t, "ls", "--store", url); code != 0 {
		t.Errorf("ls on a replica: %d %q", code, stderr)
	}
}

// TestAway: see checkAway.
func TestAway(t *testing.T) {
	t.Run("redis", redisAway)
	t.Run("postgres", postgresAway)
	t.Run("mariadb", mariadbAway)
}
