package command

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestRunEarlySignal: after a signal while the program starts, nothing is run.
func TestRunEarlySignal(t *testing.T) {
	// Not t.TempDir: a store that is given up while it is opened may be about to make its
	// file when Run has returned.
	dir, err := os.MkdirTemp("", "early")
	testkit.Must(t, err)
	t.Cleanup(func() {
		for end := time.Now().Add(testkit.Limit); os.RemoveAll(dir) != nil; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatal("its folder cannot be removed")
			}
		}
	})
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
