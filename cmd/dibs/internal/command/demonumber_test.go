//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// counted is what the demo first writes.
var counted = regexp.MustCompile(`^5 processes each read a number, think, add one and write it back\.
It is 100, and should become 105\.

without a lock  read ( +\d+){5}
 +wrote( +\d+){5}
 +10[1-5]: (every update counts|1 update is lost|[2-4] updates are lost), in [\d.]+ s

with dibs       read   100  101  102  103  104
 +wrote  101  102  103  104  105
 +105: every update counts, in [\d.]+ s

`)

// demo runs the demo, checks what it says of the number, and returns what it says, and whether updates
// were lost without a lock. That depends on the machine: the program exits with 1 if none was lost. No file
// is left.
func (b *bench) demo(t *testing.T) (stdout string, lost bool) {
	t.Helper()
	code, stdout, stderr := b.run(t, "demo", "--exit")
	if !counted.MatchString(stdout) {
		t.Fatalf("%d, %q\n%s", code, stderr, stdout)
	}
	lost = strings.Contains(stdout, "lost, in")
	if lost && (code != 0 || stderr != "" || !strings.Contains(stdout, "orders charged more than once")) ||
		!lost && (code != 1 || !strings.Contains(stderr, "no update was lost without a lock either")) {
		t.Errorf("%d, %q\n%s", code, stderr, stdout)
	}
	b.noneOfADemo(t)
	return stdout, lost
}

// TestARelativeTemporaryFolder: the temporary store of a command has an absolute path, whatever
// TMPDIR is.
func TestARelativeTemporaryFolder(t *testing.T) {
	t.Parallel()
	b := unnamed(t)
	b.env = []string{"TMPDIR=."}
	b.demo(t)
}

// TestDemoUnusable: a store that the demo cannot use is reported before anything begins.
func TestDemoUnusable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.store = "memory:"
	b.says(t, 64, "", "cannot share a store in memory", "demo", "--exit")
	b.store = "sqlite:" + b.path("missing/dibs.db")
	b.says(t, 69, "", "missing/dibs.db", "demo", "--exit")
}

// TestDemoTerminated: a demo that a signal ends, while its processes add to the number or its clients
// charge, leaves no key and no file behind.
func TestDemoTerminated(t *testing.T) {
	everyStore(t, func(t *testing.T, b *bench) {
		b.env = append(b.env, "TMPDIR="+b.dir)
		for what, come := range map[string]func(p *program) bool{
			"a process has the key, or all had it": func(p *program) bool {
				for range b.inspector(t).List(t.Context(), store.Query{}) {
					return true
				}
				return strings.Contains(p.stdout.String(), "with dibs")
			},
			"it has charged": func(p *program) bool {
				files, err := filepath.Glob(b.path("dibs-demo-*/bare.charges"))
				return err == nil && len(files) == 1 || len(p.stderr.String()) > 0 // no update was lost
			},
		} {
			p := b.start(t, "demo")
			testkit.Eventually(t, what, func() bool { return come(p) })
			_ = p.Process.Signal(syscall.SIGTERM)
			if code := p.code(t); code != 128+int(syscall.SIGTERM) && code != 1 { // if no update was lost
				t.Errorf("it exited with %d", code)
			}
			b.noneOfADemo(t)
			for e, err := range b.inspector(t).List(t.Context(), store.Query{}) {
				t.Errorf("left behind: %+v, %v", e, err)
			}
		}
	})
}

// noneOfADemo: no file is left.
func (b *bench) noneOfADemo(t *testing.T) {
	t.Helper()
	files, err := os.ReadDir(b.dir)
	testkit.Must(t, err)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "dibs-demo-") {
			t.Errorf("left behind: %s", f.Name())
		}
	}
}
