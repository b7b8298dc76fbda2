//go:build unix

package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Servers run as somebody who is not root, in a folder that is his.
func TestAccount(t *testing.T) {
	t.Parallel()
	as, err := unprivileged("no-such-user")
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFolder(as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.remove() })
	if err := as.write(f.join("note"), "text"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "id -u; cat note; touch made")
	cmd.Dir = f.path
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	out, err := cmd.CombinedOutput()
	id, text, _ := strings.Cut(string(out), "\n")
	if err != nil || id == "0" || text != "text" {
		t.Errorf("as user %q it reads %q, %v", id, text, err)
	}
	if _, err := os.Stat(f.join("made")); err != nil {
		t.Error(err)
	}
}

func TestEnterable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if !enterable("/") || !enterable("/tmp") {
		t.Error("/tmp cannot be entered")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if enterable(inner) || enterable(filepath.Join(dir, "missing")) {
		t.Error("what is behind a closed folder can be entered")
	}
}
