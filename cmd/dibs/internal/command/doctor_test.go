//go:build unix

package command_test

import (
	"strings"
	"testing"
)

// TestDoctor: it says what it finds, with the cure and the exit code, what it
// looked at, and changes nothing.
func TestDoctor(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		b := newBench(t)
		b.says(t, 69, "", "there is no file", "doctor")
		if b.exists("dibs.db") {
			t.Error("it made the file")
		}
		b.inspector(t)
		_, stdout, _ := b.run(t, "doctor") // what the filesystem is here, who knows
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
