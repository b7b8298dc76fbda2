//go:build unix

package servertest

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
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
	if err := os.WriteFile(name, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
}

var gadget = &program{names: []string{"gadget", "gizmo"}, pkg: "gadget-tools", env: "DIBS_GADGET"}

func TestProgramLook(t *testing.T) {
	bin, _ := shop(t, "")
	if got := gadget.look(); got != "" {
		t.Errorf("found %s", got)
	}
	second := filepath.Join(bin, "gizmo")
	executable(t, second, "")
	if got := gadget.look(); got != second {
		t.Errorf("found %s; want %s", got, second)
	}
	elsewhere := t.TempDir()
	placed := &program{names: gadget.names, places: []string{filepath.Join(elsewhere, "*", "bin")}}
	for _, version := range []string{"14", "15"} {
		if err := os.MkdirAll(filepath.Join(elsewhere, version, "bin"), 0o700); err != nil {
			t.Fatal(err)
		}
		executable(t, filepath.Join(elsewhere, version, "bin", "gadget"), "")
	}
	if got, want := placed.look(), filepath.Join(elsewhere, "15", "bin", "gadget"); got != want {
		t.Errorf("found %s; want %s", got, want)
	}
	// A link to something else that took over the name is not it.
	taken := &program{names: gadget.names, places: placed.places, not: "usurper"}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	executable(t, filepath.Join(bin, "usurper"), "")
	if err := os.Symlink("usurper", filepath.Join(bin, "gadget")); err != nil {
		t.Fatal(err)
	}
	if got, want := taken.look(), placed.look(); got == want || got != filepath.Join(elsewhere, "15", "bin", "gadget") {
		t.Errorf("found %s, and %s where anything will do", got, want)
	}
	t.Setenv("DIBS_GADGET", "/opt/my/gadget")
	if got, err := gadget.find(); got != "/opt/my/gadget" || err != nil {
		t.Errorf("found %s, %v; want what the variable says", got, err)
	}
}

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
	ran, err := os.ReadFile(filepath.Join(dir, "ran"))
	if err != nil {
		t.Fatal(err)
	}
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

// What only the backports have comes from there, and from the mirror of the
// system.
func TestInstallBackported(t *testing.T) {
	bin, a := shop(t, `
case "$*" in
*indextargets*)
	echo "http://mirror/debian/ trixie-updates"
	echo "http://mirror/debian/ trixie" ;;
*SourceList=*update*) touch "$DIR/updated" ;;
*SourceList=*install*)
	test -e "$DIR/updated" || exit 100
	for word in "$@"; do case "$word" in
		Dir::Etc::SourceList=*) cp "${word#*=}" "$DIR/sources" ;;
	esac; done
	touch "$BIN/gadget" && chmod 700 "$BIN/gadget" ;;
*install*) exit 100 ;;
esac`)
	recent := *gadget
	if _, err := a.install(&recent); err == nil {
		t.Error("took a backport unasked")
	}
	recent.backported = true
	if got, err := a.install(&recent); got != filepath.Join(bin, "gadget") || err != nil {
		t.Fatalf("installed %q, %v", got, err)
	}
	sources, err := os.ReadFile(filepath.Join(filepath.Dir(a.lock), "sources"))
	if want := "deb http://mirror/debian/ trixie main\ndeb http://mirror/debian/ trixie-backports main\n"; string(sources) != want || err != nil {
		t.Errorf("the sources were %q, %v; want %q", sources, err, want)
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

// The policy on services that a system has is its own.
func TestForbidServicesLeavesPolicy(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy")
	executable(t, policy, "mine")
	permit, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	permit()
	if b, err := os.ReadFile(policy); string(b) != "mine" || err != nil {
		t.Errorf("the policy is %q, %v; want it as it was", b, err)
	}
}

// What a package is to find is there when it is installed, what it has started
// with the system is not; what the system has of its own stays.
func TestInstallSettings(t *testing.T) {
	bin, a := shop(t, `
case "$*" in
*install*)
	cp "$DIR/new" "$DIR/found"
	touch "$BIN/gadget" && chmod 700 "$BIN/gadget" ;;
esac`)
	executable(t, filepath.Join(bin, "update-rc.d"), "#!/bin/sh\necho \"$*\" >>\"$DIR/services\"\n")
	dir := filepath.Dir(a.lock)
	configured := *gadget
	configured.service = "gadgetd"
	configured.settings = map[string]string{filepath.Join(dir, "new"): "start = no", filepath.Join(dir, "own"): "start = no"}
	if err := os.WriteFile(filepath.Join(dir, "own"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.install(&configured); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"found": "start = no", "own": "mine", "services": "gadgetd disable\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != want {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}
}
