package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestDownload: an archive of this machine's program installs everything, its SBOM has every
// module, and it has the licence of each.
func TestDownload(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "dibs")
	// As make build does, so that it is compiled once.
	if _, err := output(t.Context(), "../..", []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", binary, "./"+program); err != nil {
		t.Fatal(err)
	}
	values, err := output(t.Context(), ".", nil, "go", "env", "GOROOT", "GOMODCACHE")
	testkit.Must(t, err)
	d := &download{binary: binary}
	d.goroot, d.cache, _ = strings.Cut(values, "\n")
	texts, err := printedBy(t.Context(), binary)
	testkit.Must(t, err)
	packed, bill, err := d.files(texts)
	testkit.Must(t, err)
	files := map[string]string{}
	for _, p := range packed {
		files[p.name] = fmt.Sprintf("%o %s", p.mode, p.text)
	}
	info, err := buildinfo.ReadFile(binary)
	testkit.Must(t, err)
	if program, err := os.ReadFile(binary); err != nil || files["bin/dibs"] != "755 "+string(program) {
		t.Errorf("the archive does not have the program to be executed, %v", err)
	}
	for name, part := range map[string]string{
		"share/man/man1/dibs.1":                     ".TH DIBS 1 ",
		"share/bash-completion/completions/dibs":    "__complete",
		"share/zsh/site-functions/_dibs":            "#compdef dibs",
		"share/fish/vendor_completions.d/dibs.fish": "complete -c dibs",
		"share/powershell/dibs.ps1":                 "Register-ArgumentCompleter",
		"share/doc/dibs/LICENSES.txt":               "The Go Authors",
	} {
		if text, ok := strings.CutPrefix(files[name], "644 "); !ok || !strings.Contains(text, part) {
			t.Errorf("%s does not have %q: %.100q", name, part, text)
		}
	}
	for _, m := range info.Deps {
		heading := fmt.Sprintf("\n==== %s %s: ", m.Path, m.Version)
		if ours := strings.HasPrefix(m.Path, root); strings.Contains(files["share/doc/dibs/LICENSES.txt"], heading) == ours {
			t.Errorf("LICENSES.txt has %s %s: %v", m.Path, m.Version, ours)
		}
	}
	checkBill(t, bill, files["bin/dibs"], info)
	parse := exec.Command("bash", "-n")
	parse.Stdin = strings.NewReader(strings.TrimPrefix(files["share/bash-completion/completions/dibs"], "644 "))
	if said, err := parse.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Logf("bash did not parse its completion: %v", err)
	} else if err != nil {
		t.Errorf("bash: %v\n%s", err, said)
	}
}

// checkBill compares an SBOM with what the binary says.
func checkBill(t *testing.T, text []byte, program string, info *buildinfo.BuildInfo) {
	t.Helper()
	var b bill
	testkit.Must(t, json.Unmarshal(text, &b))
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.TrimPrefix(program, "755 "))))
	about := b.Metadata.Component
	if b.Format != "CycloneDX" || about.Name != info.Main.Path || !slices.Equal(about.Hashes, []hash{{"SHA-256", digest}}) {
		t.Errorf("it is a %s of %v", b.Format, about)
	}
	want := map[string]bool{"pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go"): true}
	for _, m := range info.Deps {
		if !strings.Contains(m.Version, "(") { // ours have no version here
			want["pkg:golang/"+strings.ToLower(m.Path)+"@"+m.Version] = true
		}
	}
	for _, c := range b.Components {
		if c.Type != "library" || c.Name == "" || c.Ref != c.URL {
			t.Errorf("a component is %v", c)
		}
		delete(want, c.URL)
	}
	if len(b.Components) != len(info.Deps)+1 || len(want) > 0 {
		t.Errorf("it lists %d components, and not %v", len(b.Components), want)
	}
}

// TestWrite: an archive and an SBOM are written as they were made, and SHA256SUMS has the
// checksums of both.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	d := download{name: "dibs_v0.1.0_here", when: time.Unix(1e9, 0)}
	testkit.Must(t, d.write(dir, []packed{{"bin/dibs", []byte("program"), 0o755}, {"share/text", []byte("text"), 0o644}}, []byte("bill")))
	testkit.Must(t, checksums(dir))
	user := t.TempDir()
	if _, err := output(t.Context(), dir, nil, "tar", "-xzf", d.name+".tar.gz", "--strip-components=1", "-C", user); err != nil {
		t.Fatal(err)
	}
	program, err := os.Stat(filepath.Join(user, "bin/dibs"))
	if err != nil || program.Mode()&0o100 == 0 || !program.ModTime().Equal(d.when) {
		t.Errorf("the program is %v, %v", program, err)
	}
	if text, err := os.ReadFile(filepath.Join(user, "share/text")); err != nil || string(text) != "text" {
		t.Errorf("the text is %q, %v", text, err)
	}
	var want strings.Builder
	for _, name := range []string{d.name + ".cdx.json", d.name + ".tar.gz"} {
		text := testkit.ReadFile(t, filepath.Join(dir, name))
		fmt.Fprintf(&want, "%x  %s\n", sha256.Sum256(text), name)
	}
	if sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS")); err != nil || string(sums) != want.String() {
		t.Errorf("SHA256SUMS is %q, %v; want %q", sums, err, want.String())
	}
}

// TestLicenceFiles: the licence of a part of a module is found beside the module's own, and
// code is no licence.
func TestLicenceFiles(t *testing.T) {
	dir := fstest.MapFS{}
	for _, name := range []string{"LICENSE", "License.txt", "LICENSE-SQLITE", "COPYING", "NOTICE", "PATENTS", "part/LICENCE.md",
		"notice.go", "check_license.sh", "testdata/LICENSE", "README.md"} {
		dir[name] = &fstest.MapFile{}
	}
	got, err := licenceFiles(dir)
	if want := []string{"COPYING", "LICENSE", "LICENSE-SQLITE", "License.txt", "NOTICE", "PATENTS", "part/LICENCE.md"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// TestNoLicence: a module without a licence is not released.
func TestNoLicence(t *testing.T) {
	goroot, cache := t.TempDir(), t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(goroot, "LICENSE"), []byte("Go's"), 0o644))
	testkit.Must(t, os.MkdirAll(filepath.Join(cache, "example.com", "!a@v1.0.0"), 0o755))
	info := &buildinfo.BuildInfo{GoVersion: "go1.26.0", Deps: []*debug.Module{{Path: "example.com/A", Version: "v1.0.0"}}}
	if _, err := licences(info, goroot, cache); err == nil || err.Error() != "example.com/A v1.0.0 has no licence" {
		t.Errorf("the error is %v", err)
	}
}
