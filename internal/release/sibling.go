package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// root is the path of the root module; all others are below it.
const root = "github.com/dibs-go/dibs"

// kept are the modules that no other module requires. They are not released.
var kept = []string{"examples", "internal/release"}

// sibling is one module of the repository.
type sibling struct {
	dir  string // in the repository, with slashes; "" is the root
	file *modfile.File
}

func (m sibling) path() string { return path.Join(root, m.dir) }

// tag is the name of the tag that makes a commit the module's version.
func (m sibling) tag(version string) string { return path.Join(m.dir, version) }

// siblings returns the modules of the repository that are released, each after those that
// it requires. The list is the repository's go.work.
func siblings(repository string) ([]sibling, error) {
	name := filepath.Join(repository, "go.work")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork(name, text, nil)
	if err != nil {
		return nil, err
	}
	found := map[string]sibling{}
	for _, use := range work.Use {
		m := sibling{dir: strings.TrimPrefix(path.Clean(use.Path), ".")}
		if slices.Contains(kept, m.dir) {
			continue
		}
		if m.file, err = readMod(filepath.Join(repository, m.dir)); err != nil {
			return nil, err
		}
		if m.file.Module.Mod.Path != m.path() {
			return nil, fmt.Errorf("%s/go.mod names the module %s, want %s", m.dir, m.file.Module.Mod.Path, m.path())
		}
		found[m.path()] = m
	}
	var sorted []sibling
	done := map[string]bool{}
	var addSorted func(m sibling)
	addSorted = func(m sibling) {
		if done[m.path()] {
			return
		}
		done[m.path()] = true
		for _, r := range m.file.Require {
			if needed, ok := found[r.Mod.Path]; ok {
				addSorted(needed)
			}
		}
		sorted = append(sorted, m)
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		addSorted(found[name])
	}
	return sorted, nil
}

func readMod(dir string) (*modfile.File, error) {
	name := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, text, nil)
}

// pin makes the module's file require its siblings at the version, from where they are
// published and not from beside it.
func (m sibling) pin(repository, version string) error {
	for _, r := range m.file.Replace {
		if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	for _, r := range m.file.Require {
		if r.Mod.Path != root && !strings.HasPrefix(r.Mod.Path, root+"/") {
			continue
		}
		if err := m.file.AddRequire(r.Mod.Path, version); err != nil {
			return err
		}
	}
	m.file.Cleanup()
	text, err := m.file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(repository, m.dir, "go.mod"), text, 0o644)
}
