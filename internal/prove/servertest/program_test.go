//go:build unix

package servertest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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

// What a database is made of: small files, a large one with holes, an empty one,
// and folders with rights of their own.
func makeSample(dir string, as *account) error {
	hollow := make([]byte, 3<<20)
	copy(hollow[1<<20:], "in the middle")
	if err := os.Mkdir(filepath.Join(dir, "base"), 0o750); err != nil {
		return err
	}
	for name, text := range map[string]string{"small": "text", "empty": "", "base/hollow": string(hollow), "base/zero": string(make([]byte, 1000))} {
		if err := as.write(filepath.Join(dir, name), text); err != nil {
			return err
		}
	}
	return nil
}

func TestTemplate(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	program := filepath.Join(t.TempDir(), "program")
	executable(t, program, "version 1")
	var made atomic.Int32
	sample := template{kind: "sample", program: program, make: func(dir string, as *account) error {
		made.Add(1)
		return makeSample(dir, as)
	}}
	as, err := unprivileged()
	testkit.Must(t, err)
	dir := t.TempDir()
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		all.Go(func() {
			if err := sample.copyTo(filepath.Join(dir, name), as); err != nil {
				t.Errorf("copying to %s: %v", name, err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times; want once", made.Load())
	}
	want := t.TempDir()
	testkit.Must(t, makeSample(want, nil))
	for _, name := range []string{"small", "empty", "base/hollow", "base/zero"} {
		text := testkit.ReadFile(t, filepath.Join(want, name))
		if got, err := os.ReadFile(filepath.Join(dir, "b", name)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s has %d bytes that differ, %v", name, len(got), err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "a", "base")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("a folder: %v, %v", info, err)
	}

	// What is there is not written over, and another program has another one.
	if err := sample.copyTo(filepath.Join(dir, "a"), as); !errors.Is(err, os.ErrExist) {
		t.Errorf("copying to what is there: %v", err)
	}
	executable(t, program, "version 2, which is longer")
	if err := sample.copyTo(filepath.Join(dir, "d"), as); err != nil || made.Load() != 2 {
		t.Errorf("after an update: %v; made %d times, want twice", err, made.Load())
	}

	// One that could not be made is not taken for one.
	executable(t, program, "version 3")
	broken := sample
	broken.make = func(dir string, as *account) error { return errors.New("no room") }
	if err := broken.copyTo(filepath.Join(dir, "e"), as); !strings.Contains(errorText(err), "no room") {
		t.Errorf("one that cannot be made: %v", err)
	}
	if err := sample.copyTo(filepath.Join(dir, "e"), as); err != nil || made.Load() != 3 {
		t.Errorf("after it: %v; made %d times, want three", err, made.Load())
	}
}
