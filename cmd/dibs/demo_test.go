//go:build unix

package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestDemoInterrupted: a demo that is interrupted ends with the signal's code
// and leaves no process and no file behind.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	p := startWith(t, []string{"TMPDIR=" + temp}, "demo")
	testkit.Eventually(t, "the demo has charged", func() bool {
		files, err := filepath.Glob(filepath.Join(temp, "dibs-demo-*", "bare.charges"))
		return err == nil && len(files) == 1
	})
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 128+int(syscall.SIGTERM) {
		t.Errorf("it exited with %d: %s", code, p.stderr.String())
	}
	if left, err := filepath.Glob(filepath.Join(temp, "dibs-demo-*")); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
