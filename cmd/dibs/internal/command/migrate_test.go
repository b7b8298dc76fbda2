//go:build unix

package command_test

import (
	"strings"
	"testing"
)

// TestMigrate: a file is created once, with a message. A store without tables has nothing to
// migrate.
func TestMigrate(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		b := newBench(t)
		b.says(t, 0, "dibs.db is created; ", "", "migrate")
		b.says(t, 0, "dibs.db is up to date; ", "", "migrate")
		b.says(t, 0, "-- sqlite:", "", "migrate", "--print")
		b.store = "sqlite:" + b.path("missing/dibs.db")
		b.says(t, 69, "", "create it first", "migrate")
	})
	t.Run("memory", func(t *testing.T) {
		b := newBench(t)
		b.store = "memory:"
		b.says(t, 0, "memory: has no tables, so there is nothing to migrate\n", "", "migrate")
	})
}

// says runs the program and checks how it ends and what it says; "" for nothing.
func (b *bench) says(t *testing.T, code int, stdout, stderr string, args ...string) {
	t.Helper()
	got, out, errs := b.run(t, args...)
	if got != code || !strings.Contains(out, stdout) || !strings.Contains(errs, stderr) ||
		stdout == "" && out != "" || stderr == "" && errs != "" {
		t.Errorf("%v: %d %q %q; want %d %q %q", args, got, out, errs, code, stdout, stderr)
	}
}
