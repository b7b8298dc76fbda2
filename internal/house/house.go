// Package house checks that a module keeps the layout that docs/architecture.md
// draws: which package may import which, and that each says why it exists. Each
// module states its own rooms in a table in its house_test.go, which is the map.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Root is the path of the root module, with which all others begin.
const Root = "github.com/dibs-go/dibs"

// A Room is one package, or with a trailing "/..." all packages below a folder.
type Room struct {
	// Dir is the package's folder, relative to its module: "." for the root.
	Dir string
	// Imports are the import paths outside the standard library that its code
	// may have; a trailing "/..." allows all below.
	Imports []string
	// Tests are those that its tests may have beyond Imports and the package
	// itself.
	Tests []string
}

// Check fails the test unless the packages of the module in the test's folder
// are exactly the rooms, and each keeps to its imports and has a package
// comment.
func Check(t *testing.T, rooms []Room) {
	t.Helper()
	module := moduleOf(t)
	seen := map[string]bool{}
	for dir, files := range packages(t) {
		i := slices.IndexFunc(rooms, func(r Room) bool { return matches(r.Dir, dir) })
		if i < 0 {
			t.Errorf("%s: the map in house_test.go has no such room", dir)
			continue
		}
		seen[rooms[i].Dir] = true
		commented, code := false, false
		for name, file := range files {
			test := strings.HasSuffix(name, "_test.go")
			commented = commented || !test && file.Doc != nil
			code = code || !test
			allowed := rooms[i].Imports
			if test {
				allowed = slices.Concat(allowed, rooms[i].Tests)
			}
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
					continue // the standard library
				}
				if test && imported == path.Join(module, dir) {
					continue // the package itself
				}
				if !slices.ContainsFunc(allowed, func(a string) bool { return matches(a, imported) }) {
					t.Errorf("%s may not import %s", name, imported)
				}
			}
		}
		if code && !commented {
			t.Errorf("%s: the package has no comment that says why it exists", dir)
		}
	}
	for _, r := range rooms {
		if !seen[r.Dir] {
			t.Errorf("%s: in the map of house_test.go, but there is no such package", r.Dir)
		}
	}
}

// matches reports whether the pattern, perhaps ending in "/...", names s.
func matches(pattern, s string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return s == prefix || strings.HasPrefix(s, prefix+"/")
	}
	return s == pattern
}

// packages parses the Go files of the module in the working directory, by
// folder and then by file.
func packages(t *testing.T) map[string]map[string]*ast.File {
	t.Helper()
	found := map[string]map[string]*ast.File{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || isModule(name)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		if found[dir] == nil {
			found[dir] = map[string]*ast.File{}
		}
		found[dir][filepath.ToSlash(name)] = file
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// isModule reports whether another module begins in the folder.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// moduleOf returns the path of the module in the working directory.
func moduleOf(t *testing.T) (module string) {
	t.Helper()
	b, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			module = strings.TrimSpace(name)
		}
	}
	if module == "" {
		t.Fatal("go.mod names no module")
	}
	// In the workspace a module builds without it, and nowhere else.
	if module != Root && !strings.Contains(string(b), Root+" v") {
		t.Errorf("go.mod does not require %s", Root)
	}
	return module
}
