//go:build unix

package servertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// What a killed process left is removed, what a living one has is not, nor is
// what is just being made.
func TestSweep(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp") // and not one that is too long
	alive, err := newFolder(nil)
	testkit.Must(t, err)
	root := t.TempDir()
	moved := filepath.Join(root, filepath.Base(alive.path))
	testkit.Must(t, os.Rename(alive.path, moved))
	alive.path = moved
	left := filepath.Join(root, folderPrefix+"left")
	fresh := filepath.Join(root, folderPrefix+"fresh")
	other := filepath.Join(root, "other")
	for _, dir := range []string{left, fresh, other} {
		testkit.Must(t, os.Mkdir(dir, 0o700))
	}
	for _, dir := range []string{left, other} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600))
	}
	exists := func(dir string) bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	sweep(root)
	for dir, want := range map[string]bool{alive.path: true, left: false, fresh: true, other: true} {
		if exists(dir) != want {
			t.Errorf("%s exists: %v; want %v", dir, exists(dir), want)
		}
	}
	if err := alive.remove(); err != nil || exists(alive.path) {
		t.Errorf("removing: %v", err)
	}
}
