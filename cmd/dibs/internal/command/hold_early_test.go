package command

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRunEarlySignal: a signal that came while the program started is not
// forgotten: nothing is run.
func TestRunEarlySignal(t *testing.T) {
	dir := t.TempDir()
	for range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(&InterruptedError{Signal: syscall.SIGTERM})
		var stderr strings.Builder
		code := Run(ctx, []string{"run", "--store", "sqlite:" + filepath.Join(dir, "dibs.db"), "k", "--", "touch", filepath.Join(dir, "ran")}, Env{
			Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Getenv: func(string) string { return "" },
		})
		if code != 143 || stderr.Len() == 0 {
			t.Fatalf("%d, %q", code, stderr.String())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("it was run")
	}
}
