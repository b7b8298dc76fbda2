//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/testkit"
)

// TestTorture: dibs torture runs dibs-torture with its arguments and its exit code. If that is
// not on PATH, it says how to install it.
func TestTorture(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	b.env = append(b.env, "PATH="+dir)
	code, _, stderr := b.run(t, "torture", "--duration", "5m")
	if code != 69 || !strings.Contains(stderr, "go install ./cmd/dibs-torture # in the clone") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	script := "#!/bin/sh\necho \"$0 $*\"\nexit 3\n"
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "dibs-torture"), []byte(script), 0o755))
	if code, stdout, _ := b.run(t, "torture", "--help", "--duration", "5m"); code != 3 || !strings.HasSuffix(stdout, "dibs-torture --help --duration 5m\n") {
		t.Errorf("exit code %d: %q", code, stdout)
	}
}
