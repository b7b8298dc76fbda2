//go:build unix

package servertest

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// shop is a system on which only what the test puts there is installed, with an
// apt-get that runs the script.
func shop(t *testing.T, script string) (bin string, a installer) {
	t.Helper()
	bin, dir := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	t.Setenv("BIN", bin)
	t.Setenv("DIR", dir)
	if script != "" {
		executable(t, filepath.Join(bin, "apt-get"), "#!/bin/sh\nPATH=/usr/bin:/bin\n"+script)
	}
	return bin, installer{root: true, policy: filepath.Join(dir, "policy"), lock: filepath.Join(dir, "lock")}
}

func executable(t *testing.T, name, script string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(name, []byte(script), 0o700))
}

var gadget = &program{names: []string{"gadget", "gizmo"}, pkg: "gadget-tools", env: "DIBS_GADGET"}

func TestInstall(t *testing.T) {
	// The lists are old: only after an update there is such a package.
	bin, a := shop(t, `
echo "$*" >>"$DIR/ran"
case "$*" in
*update*) touch "$DIR/updated" ;;
*"install -y --no-install-recommends gadget-tools"*)
	test -e "$DIR/updated" || exit 100
	cp "$DIR/policy" "$DIR/asked" || exit 1
	touch "$BIN/gadget" && chmod 700 "$BIN/gadget" ;;
esac`)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if got, err := a.install(gadget); got != filepath.Join(bin, "gadget") || err != nil {
				t.Errorf("installed %q, %v", got, err)
			}
		})
	}
	all.Wait()
	dir := filepath.Dir(a.lock)
	ran := testkit.ReadFile(t, filepath.Join(dir, "ran"))
	if n := strings.Count(string(ran), "\n"); n != 3 {
		t.Errorf("apt-get ran %d times; want 3:\n%s", n, ran)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil || !strings.Contains(string(asked), "exit 101") {
		t.Errorf("while installing, the policy on services was %q, %v", asked, err)
	}
	if _, err := os.Stat(a.policy); !os.IsNotExist(err) {
		t.Errorf("the policy on services is still there: %v", err)
	}
}

// TestInstallAll: one call of apt-get installs all programs that are missing, and no others.
func TestInstallAll(t *testing.T) {
	bin, a := shop(t, `
echo "$*" >>"$DIR/ran"
for package in "$@"; do touch "$BIN/$package"; chmod 700 "$BIN/$package"; done 2>/dev/null`)
	executable(t, filepath.Join(bin, "here"), "")
	testkit.Must(t, a.installAll([]program{{names: []string{"one"}, pkg: "one"}, {names: []string{"here"}, pkg: "here"}, {names: []string{"two"}, pkg: "two"}}))
	ran := string(testkit.ReadFile(t, filepath.Join(filepath.Dir(a.lock), "ran")))
	if strings.Count(ran, "\n") != 1 || !strings.HasSuffix(ran, " one two\n") {
		t.Errorf("apt-get ran with\n%s", ran)
	}
}

func TestInstallRefused(t *testing.T) {
	tests := []struct {
		name, script string
		root         bool
		want         string
		backported   bool
	}{
		{"not root", "touch $BIN/gadget", false, "gadget is missing: install it (on Debian: apt-get install gadget-tools)", false},
		{"no apt", "", true, "gadget is missing: install it (on Debian: apt-get install gadget-tools)", false},
		{"no such package", "echo E: Unable to locate; exit 100", true, "apt-get install gadget-tools failed: exit status 100\nE: Unable to locate", false},
		{"no backports either", "case $* in *indextargets*) echo http://mirror/ubuntu/ noble-updates ;; *) exit 100 ;; esac", true, "apt-get install gadget-tools failed: the system is not Debian", true},
		{"not in the package", "exit 0", true, "the package gadget-tools is installed, but has no gadget or gizmo", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, a := shop(t, test.script)
			a.root = test.root
			wanted := *gadget
			wanted.backported = test.backported
			if _, err := a.install(&wanted); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want %q", err, test.want)
			}
		})
	}
}
