package proxy

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestTemporaryFolder: a folder of temporary files that cannot be written is a fault of a
// configuration whose guarded bodies need it, and of no other.
func TestTemporaryFolder(t *testing.T) {
	writable := t.TempDir()
	folders := map[string]bool{writable: true, filepath.Join(t.TempDir(), "missing"): false}
	const top = "upstream: http://x\nadmin: 127.0.0.1:9090\n"
	for text, needed := range map[string]bool{
		top:                         true,
		top + "max-body: 1048577\n": true,
		top + "max-body: 1MiB\n":    false,
		top + "guard: false\n":      false,
		top + "max-body: 1KiB\nroutes:\n  - {path: /upload, max-body: 2MiB}\n":            true,
		top + "guard: false\nroutes:\n  - {path: /upload, guard: true, max-body: 1KiB}\n": false,
	} {
		t.Setenv("TMPDIR", writable) // because load writes the file there
		c, err := load(t, text)
		testkit.Must(t, err)
		for folder, ok := range folders {
			t.Setenv("TMPDIR", folder)
			t.Setenv("TMP", folder) // on Windows
			want := needed && !ok
			if err := c.checkTemporary(); (err != nil) != want {
				t.Errorf("%s: with a folder that can be written %v: %v", text, ok, err)
			}
			if want {
				checkFinds(t, text, c.checkFolder(), "temporary: The proxy does not start: max-body: ", store.SeverityDangerous)
				if !slices.ContainsFunc(c.Check(time.Now()), func(f store.Finding) bool { return f.Name == "temporary" }) {
					t.Errorf("%s: Check does not find it", text)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(folder, "dibs-body-*")); len(left) > 0 {
				t.Errorf("%s: left behind: %v", text, left)
			}
		}
	}
}
