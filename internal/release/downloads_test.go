package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// TestDownload: this machine's program, packed, has an archive that installs everything, an
// SBOM with every module, the licence of each, and the right checksums.
func TestDownload(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "dibs")
	// As make build does, so that it is compiled once.
	if _, err := output(t.Context(), "../..", []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", binary, "./"+program); err != nil {
		t.Fatal(err)
	}
	values, err := output(t.Context(), ".", nil, "go", "env", "GOROOT", "GOMODCACHE")
	if err != nil {
		t.Fatal(err)
	}
	goroot, cache, _ := strings.Cut(values, "\n")
	texts, err := shownBy(t.Context(), binary)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d := download{name: "dibs_v0.1.0_here", binary: binary, when: time.Unix(1e9, 0)}
	if err := d.pack(dir, goroot, cache, texts); err != nil {
		t.Fatal(err)
	}
	if err := checksums(dir); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	files := unpacked(t, filepath.Join(dir, d.name+".tar.gz"), d.name)
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
	checkBill(t, filepath.Join(dir, d.name+".cdx.json"), binary, info)
	checkSums(t, dir, d.name+".cdx.json", d.name+".tar.gz")
	parse := exec.Command("bash", "-n")
	parse.Stdin = strings.NewReader(strings.TrimPrefix(files["share/bash-completion/completions/dibs"], "644 "))
	if said, err := parse.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Logf("bash did not parse its completion: %v", err)
	} else if err != nil {
		t.Errorf("bash: %v\n%s", err, said)
	}
}

// unpacked returns the files of an archive by their names below the folder: mode and text.
func unpacked(t *testing.T, name, folder string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		below, ok := strings.CutPrefix(header.Name, folder+"/")
		if !ok || !header.ModTime.Equal(time.Unix(1e9, 0)) {
			t.Errorf("the archive has %s of %v", header.Name, header.ModTime)
		}
		files[below] = fmt.Sprintf("%o %s", header.Mode, text)
	}
}

// checkBill compares an SBOM with what the binary says.
func checkBill(t *testing.T, name, binary string, info *buildinfo.BuildInfo) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var b bill
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	about := b.Metadata.Component
	if b.Format != "CycloneDX" || about.Name != info.Main.Path || !slices.Equal(about.Hashes, []hash{{"SHA-256", fmt.Sprintf("%x", sha256.Sum256(program))}}) {
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

// checkSums checks that SHA256SUMS has these files and no others.
func checkSums(t *testing.T, dir string, names ...string) {
	t.Helper()
	var want strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
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
	if err := os.WriteFile(filepath.Join(goroot, "LICENSE"), []byte("Go's"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(cache, "example.com", "!a@v1.0.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	info := &buildinfo.BuildInfo{GoVersion: "go1.26.0", Deps: []*debug.Module{{Path: "example.com/A", Version: "v1.0.0"}}}
	if _, err := licences(info, goroot, cache); err == nil || err.Error() != "example.com/A v1.0.0 has no licence" {
		t.Errorf("the error is %v", err)
	}
}
