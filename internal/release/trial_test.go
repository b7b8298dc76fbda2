//go:build nightly

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestPackages: the package of each client does what its README says, and the same commit makes the
// same package.
func TestPackages(t *testing.T) {
	testkit.Must(t, servertest.InstallPackagers())
	dir := t.TempDir()
	r := &release{version: "v0.0.1", clone: filepath.Join(dir, "clone"), downloads: filepath.Join(dir, "downloads"), scratch: dir}
	dibs := filepath.Join(dir, "dibs")
	for _, command := range [][]string{
		{"git", "clone", "--quiet", repository(t), r.clone},
		{"go", "build", "-trimpath", "-o", dibs, "../../" + program},
	} {
		if _, err := output(t.Context(), ".", []string{"CGO_ENABLED=0"}, command[0], command[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range clients {
		testkit.Must(t, c.pin(r.clone, r.version))
	}
	testkit.Must(t, os.Mkdir(r.downloads, 0o755))
	testkit.Must(t, r.makePackages(t.Context(), dibs))
	again := filepath.Join(dir, "again")
	testkit.Must(t, os.Mkdir(again, 0o755))
	for i, name := range []string{"dibs-0.0.1.gem", "dibs-0.0.1-py3-none-any.whl", "dibs-0.0.1.tgz"} {
		second, err := r.packClient(t.Context(), &clients[i], again)
		testkit.Must(t, err)
		want, err := os.ReadFile(filepath.Join(r.downloads, name))
		testkit.Must(t, err)
		if got, err := os.ReadFile(second); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is another file the second time, %v", name, err)
		}
		var b bill
		text, err := os.ReadFile(filepath.Join(r.downloads, name+".cdx.json"))
		testkit.Must(t, err)
		testkit.Must(t, json.Unmarshal(text, &b))
		about := b.Metadata.Component
		if about.URL != "pkg:"+clients[i].kind+"/dibs@0.0.1" || about.Hashes[0].Content != fmt.Sprintf("%x", sha256.Sum256(want)) {
			t.Errorf("the SBOM of %s is of %v", name, about)
		}
	}
}

// What users will do on the day of the release works today, and every program is built for every system.
func TestTrial(t *testing.T) {
	r, err := prepare(t.Context(), repository(t), t.TempDir(), "v0.0.1")
	testkit.Must(t, err)
	defer r.close()
	testkit.Must(t, r.tryOut(t.Context()))
	testkit.Must(t, r.makeDownloads(t.Context()))
}
