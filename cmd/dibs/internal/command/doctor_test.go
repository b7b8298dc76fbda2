//go:build unix

package command_test

import (
	"strings"
	"testing"
)

// TestDoctor: the doctor prints findings with their cures, and the backend. It changes nothing.
func TestDoctor(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		b := newBench(t)
		b.says(t, 69, "", "there is no file", "doctor")
		if b.exists("dibs.db") {
			t.Error("it made the file")
		}
		b.inspector(t)
		_, stdout, _ := b.run(t, "doctor") // with findings about this filesystem
		if !strings.Contains(stdout, "looked at  "+b.store+", SQLite 3.") {
			t.Error(stdout)
		}
	})
	t.Run("memory", func(t *testing.T) {
		b := newBench(t)
		b.store = "memory:"
		b.says(t, 0, "advice     memory: The store is a part of one process", "", "doctor")
	})
}
