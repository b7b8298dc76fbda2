//go:build unix

package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What only the unstable release has is unpacked beside the system and started
// by a script; what fails half-way leaves none.
func TestInstallUnpacked(t *testing.T) {
	bin, a := shop(t, `
case "$*" in
*indextargets*) echo "http://mirror/debian/ trixie" ;;
*SourceList=*update*) touch "$DIR/updated" ;;
*SourceList=*status=*--download-only\ gadget-new*)
	test -e "$DIR/updated" || exit 100
	for word in "$@"; do case "$word" in
		Dir::Etc::SourceList=*) cp "${word#*=}" "$DIR/sources" ;;
		Dir::Cache=*) touch "${word#*=}/archives/gadget.deb" "${word#*=}/archives/libc.deb" ;;
	esac; done ;;
*) exit 100 ;;
esac`)
	executable(t, filepath.Join(bin, "dpkg"), `#!/bin/sh
PATH=/usr/bin:/bin
case "$2" in
*gadget.deb) mkdir -p "$3/usr/sbin" && echo gadget >"$3/usr/sbin/gadget" ;;
*libc.deb)
	test -e "$DIR/broken" && exit 1
	mkdir -p "$3/usr/lib64" "$3/usr/lib/any-linux-gnu"
	printf '#!/bin/sh\necho "$@"\n' >"$3/usr/lib64/ld-linux-any.so.2" && chmod 700 "$3/usr/lib64/ld-linux-any.so.2" ;;
esac`)
	place := filepath.Join(t.TempDir(), "gadget")
	wanted := *gadget
	wanted.places = []string{place}
	wanted.unpacking = &unpacking{pkg: "gadget-new", dir: place, bin: "usr/sbin/gadget"}
	broken := filepath.Join(filepath.Dir(a.lock), "broken")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := a.install(&wanted); err == nil || wanted.look() != "" {
		t.Errorf("half of it is taken: %q, %q", got, wanted.look())
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	got, err := a.install(&wanted)
	if err != nil || got != filepath.Join(place, "gadget") {
		t.Fatalf("unpacked %q, %v", got, err)
	}
	sources, err := os.ReadFile(filepath.Join(filepath.Dir(a.lock), "sources"))
	if want := "deb http://mirror/debian/ unstable main\n"; string(sources) != want || err != nil {
		t.Errorf("the sources were %q, %v; want %q", sources, err, want)
	}
	out, err := exec.Command(got, "one", "two words").CombinedOutput()
	program := place + "/root/usr/sbin/gadget"
	want := "--argv0 " + program + " --library-path " + place + "/root/usr/lib/any-linux-gnu " + program + " one two words"
	if strings.TrimSpace(string(out)) != want || err != nil {
		t.Errorf("it is started as %q, %v; want %q", out, err, want)
	}
}
