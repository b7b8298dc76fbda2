//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/testkit"
)

// unnamed is a bench without a store.
func unnamed(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.store = ""
	return b
}

// TestAStoreMustBeNamed: a command without a store is refused, runs nothing and makes nothing,
// whatever the user's folders are. An empty --store is no store.
func TestAStoreMustBeNamed(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"a user":      nil,
		"cron":        {"HOME=", "XDG_STATE_HOME="},
		"a container": {"HOME=/nonexistent", "XDG_STATE_HOME=/nonexistent"},
	} {
		for _, args := range []string{
			"run k -- touch ran", "run --skip --quiet k -- touch ran", "ls", "show k", "release --yes k", "forget --yes k", "prune",
			"settle k --rerun --yes", "migrate", "migrate --print", "doctor", "proxy --listen 127.0.0.1:0 --upstream http://127.0.0.1:1",
		} {
			b := unnamed(t)
			b.env = env
			b.says(t, 64, "", "no store is named; set --store or DIBS_STORE", strings.Fields(args)...)
			if made, err := os.ReadDir(b.dir); err != nil || len(made) > 0 {
				t.Errorf("%s: %s made %v, %v", name, args, made, err)
			}
		}
	}
	b := newBench(t)
	b.says(t, 64, "", `--store: it is empty`, "run", "--store=", "k", "--", "touch", "ran")
	b.says(t, 64, "", `--store: it is empty`, "proxy", "--store=", "--upstream", "http://127.0.0.1:1")
	if b.exists("ran") {
		t.Error("it ran")
	}
}

// TestARelativeStoreIsShownWhole: the whole path of a file is shown, so that two folders can
// be told apart. The doctor reports that the path was relative.
func TestARelativeStoreIsShownWhole(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	real, err := filepath.EvalSymlinks(b.dir)
	testkit.Must(t, err)
	b.dir = real
	for store, whole := range map[string]string{
		"sqlite:dibs.db":                   b.path("dibs.db"),
		"sqlite:./app.db?shared=true":      b.path("app.db"),
		"sqlite:../" + filepath.Base(real): b.dir + "/../" + filepath.Base(real),
	} {
		b.store = store
		if _, _, stderr := b.run(t, "show", "k"); !strings.Contains(stderr, whole) {
			t.Errorf("%s: show says %q, want %s", store, stderr, whole)
		}
	}
	b.store = "sqlite:dibs.db"
	b.says(t, 0, "", "", "run", "k", "--", "true")
	_, stdout, _ := b.run(t, "doctor")
	if !strings.Contains(stdout, "advice     relative: ") || !strings.Contains(stdout, "Cure: Name the file with its whole path: sqlite:"+b.path("dibs.db")+".") || !strings.Contains(stdout, "looked at  sqlite:"+b.path("dibs.db")) {
		t.Errorf("the doctor says %s", stdout)
	}
	b.store = "sqlite:" + b.path("dibs.db")
	if _, stdout, _ := b.run(t, "doctor"); strings.Contains(stdout, "relative") {
		t.Errorf("of a whole path the doctor says %s", stdout)
	}
}

// TestOneStoreForTwoFolders: a job with one store runs once, although its two runs are in two
// folders.
func TestOneStoreForTwoFolders(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.start(t, "run", "k", "--", "sh", "-c", "echo > in; while ! test -e enough; do sleep 0.01; done")
	testkit.Eventually(t, "the first run", func() bool { return b.exists("in") })
	other := b.command("run", "--skip", "k", "--", "touch", "ran")
	other.Dir = t.TempDir()
	if code := other.begin(t).code(t); code != 75 {
		t.Errorf("the run in the other folder exited with %d: %s", code, other.stderr.String())
	}
	b.write(t, "enough", "")
	if code := p.code(t); code != 0 {
		t.Errorf("the first run exited with %d", code)
	}
}
