package command

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// interrupting is a standard output: when a text comes to it, so does a signal.
type interrupting struct {
	text   string
	signal func()
}

func (i *interrupting) Write(p []byte) (int, error) {
	if strings.Contains(string(p), i.text) {
		i.signal()
	}
	return len(p), nil
}

// TestRaceInterrupted: a race that a signal ends has the signal's code, and leaves no
// file behind.
func TestRaceInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out := &interrupting{"without a lock", func() { cancel(&InterruptedError{Signal: syscall.SIGTERM}) }}
	code := Run(ctx, []string{"race", "--store", "sqlite:" + filepath.Join(dir, "dibs.db")}, Env{
		Stdin: strings.NewReader(""), Stdout: out, Stderr: io.Discard, Getenv: func(string) string { return "" },
	})
	if left, err := filepath.Glob(filepath.Join(dir, "dibs-race-*")); code != 143 || err != nil || len(left) > 0 {
		t.Errorf("it ended with %d and left %q, %v", code, left, err)
	}
}
