package release_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestRefused: what cannot be a release is refused, and a release that fails leaves nothing that looks
// like one.
func TestRefused(t *testing.T) {
	empty := t.TempDir()
	testkit.Must(t, exec.Command("git", "init", "--quiet", empty).Run())
	for name, c := range map[string]struct{ repository, version, says string }{
		"no version":       {empty, "", `"" is not a version such as v0.1.0`},
		"without its v":    {empty, "0.1.0", `"0.1.0" is not a version`},
		"not canonical":    {empty, "v0.1", `"v0.1" is not a version`},
		"empty repository": {empty, "v0.1.0", "does not have any commits"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "release")
			if said, err := exec.Command("./release.sh", c.repository, c.version, folder).CombinedOutput(); err == nil || !strings.Contains(string(said), c.says) {
				t.Errorf("%v, and it says %q; want %q", err, said, c.says)
			}
			if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the folder is there: %v", err)
			}
		})
	}
	there := t.TempDir()
	if said, err := exec.Command("./release.sh", empty, "v0.1.0", there).CombinedOutput(); err == nil || !strings.Contains(string(said), "exists: remove it") {
		t.Errorf("into a folder that exists: %v, and it says %q", err, said)
	}
	if _, err := os.Stat(there); err != nil {
		t.Errorf("a folder that was there before is gone: %v", err)
	}
}

// TestEachModuleIsTried: the trial has a program for each library that is released.
func TestEachModuleIsTried(t *testing.T) {
	listed, err := exec.Command("go", "list", "-m").Output()
	testkit.Must(t, err)
	modules := strings.Fields(string(listed))
	if len(modules) < 10 {
		t.Fatalf("go.work has the modules %q", modules)
	}
	for _, m := range modules {
		if strings.Contains(m, "/cmd/") || path.Base(m) == "examples" {
			continue
		}
		if _, err := os.Stat(filepath.Join("testdata", path.Base(m)+".txt")); err != nil {
			t.Errorf("no program uses %s: %v", m, err)
		}
	}
}
