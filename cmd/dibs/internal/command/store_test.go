//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// unnamed is a bench without a store.
func unnamed(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.store = ""
	return b
}

// TestAStoreMustBeNamed: a command without a store is refused, runs nothing and makes nothing,
// whatever the user's folders are. An empty --store is not a store.
func TestAStoreMustBeNamed(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"a user":      nil,
		"cron":        {"HOME=", "XDG_STATE_HOME="},
		"a container": {"HOME=/nonexistent", "XDG_STATE_HOME=/nonexistent"},
	} {
		for _, args := range []string{
			"run k -- touch ran", "run --skip --quiet k -- touch ran", "ls", "show k", "release --yes k", "forget --yes k", "prune",
			"resolve k --rerun --yes", "migrate", "migrate --print", "doctor", "proxy --listen 127.0.0.1:0 --upstream http://127.0.0.1:1",
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

// TestStoreOfAFile: every command finds the URL of the store in the file that DIBS_STORE_FILE names. A flag
// overrides it. What does not need a store does not look at it.
func TestStoreOfAFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	url := b.store
	b.write(t, "store", url+"\n")
	b.store, b.env = "", []string{"DIBS_STORE_FILE=" + b.path("store")}
	b.says(t, 0, "", "", "run", "--once-per", "1h", "k", "--", "true")
	for _, args := range []string{"ls --state done", "show k", "doctor", "migrate", "forget --yes k"} {
		if code, stdout, stderr := b.run(t, strings.Fields(args)...); code != 0 && args != "doctor" || !strings.Contains(stdout, "dibs.db") && !strings.Contains(stdout, "k ") {
			t.Errorf("%s: %d, %q, %q", args, code, stdout, stderr)
		}
	}
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nlisten: 127.0.0.1:0\n")
	for _, args := range []string{"proxy --config dibs.yaml", "serve --listen 127.0.0.1:0"} {
		p := b.start(t, strings.Fields(args)...)
		if p.awaitListening(t); !strings.Contains(p.stdout.String(), "store "+url) {
			t.Errorf("%s: %s", args, p.stdout.String())
		}
	}

	b.write(t, "bad", "mongo://:secret@h")
	for _, test := range []struct{ file, store, args, want string }{
		{"gone", "", "ls", "DIBS_STORE_FILE: there is no file " + b.path("gone")},
		{"gone", "", "run k -- touch ran", "DIBS_STORE_FILE: there is no file"},
		{"gone", "", "proxy --config dibs.yaml", "DIBS_STORE_FILE: there is no file"},
		{"gone", "", "config check dibs.yaml", "DIBS_STORE_FILE: there is no file"},
		{"gone", "", "serve", "DIBS_STORE_FILE: there is no file"},
		{"store", "sqlite:/other.db", "ls", "DIBS_STORE and the file of DIBS_STORE_FILE name different stores"},
		{"bad", "", "ls", `the scheme "mongo" is unknown`},
		{"bad", "", "proxy --config dibs.yaml", `DIBS_STORE_FILE: not the URL of a store: the scheme "mongo" is unknown`},
	} {
		b.store, b.env = test.store, []string{"DIBS_STORE_FILE=" + b.path(test.file)}
		b.says(t, 64, "", test.want, strings.Fields(test.args)...)
	}
	if b.exists("ran") {
		t.Error("it ran")
	}
	b.env = []string{"DIBS_STORE_FILE=" + b.path("gone")}
	b.says(t, 0, "", "", "run", "--store", url, "k", "--", "true")
	b.says(t, 0, "dibs ", "", "version")
}

// TestARelativeStoreIsRefused: every command refuses a file that a flag, the environment or a
// configuration names by a relative path, because that is another store in each folder. It names
// the whole path, runs nothing and makes nothing.
func TestARelativeStoreIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	real, err := filepath.EvalSymlinks(b.dir)
	testkit.Must(t, err)
	b.dir = real
	for store, whole := range map[string]string{
		"sqlite:dibs.db":              b.path("dibs.db"),
		"sqlite:./app.db?shared=true": b.path("app.db?shared=true"),
		"sqlite:../dibs.db":           b.dir + "/../dibs.db",
		"sqlite://dibs.db":            b.path("dibs.db"),
	} {
		for _, args := range []string{
			"run k -- touch ran", "run --skip --quiet k -- touch ran", "ls", "show k", "release --yes k", "forget --yes k", "prune", "resolve k --rerun --yes",
			"migrate", "migrate --print", "doctor", "demo --exit", "serve --listen 127.0.0.1:0", "proxy --listen 127.0.0.1:0 --upstream http://127.0.0.1:1",
		} {
			words := strings.Fields(args)
			b.store = store
			b.says(t, 64, "", "write sqlite:"+whole, words...)
			b.store = "sqlite:" + b.path("good.db")
			b.says(t, 64, "", "write sqlite:"+whole, append([]string{words[0], "--store", store}, words[1:]...)...)
		}
	}
	b.store = ""
	if made, err := os.ReadDir(b.dir); err != nil || len(made) > 0 {
		t.Errorf("it made %v, %v", made, err)
	}
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nlisten: 127.0.0.1:0\nstore: sqlite:dibs.db\n")
	for _, args := range []string{"proxy --config dibs.yaml", "config check dibs.yaml", "doctor --config dibs.yaml"} {
		b.says(t, 64, "", "write sqlite:"+b.path("dibs.db"), strings.Fields(args)...)
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
