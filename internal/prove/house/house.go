// Package house checks that a module keeps to the table of packages in docs/design/architecture.md:
// which package may import which. It also checks that packages and exported names have
// comments, that a README is short and true, and that no text has a phrase that stops a native
// reader. Each module lists its packages in its house_test.go.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Root is the path of the root module. The paths of all other modules begin with it.
const Root = "github.com/dibs-go/dibs"

// A Room is one package or, with a trailing "/...", all packages below a folder.
type Room struct {
	// Dir is the package's folder, relative to its module: "." for the root.
	Dir string
	// Imports are the import paths outside the standard library that its code may have. A
	// trailing "/..." allows all below.
	Imports []string
	// Tests are the import paths that only its tests may have. They may always import the
	// package itself and internal/prove/testkit.
	Tests []string
}

// Check checks the module in the test's folder. Its packages must be exactly the rooms. Each
// must keep to its imports and have a package comment. Every exported name must have a comment.
func Check(t *testing.T, rooms []Room) {
	t.Helper()
	module := moduleOf(t)
	seen := map[string]bool{}
	for dir, files := range packages(t) {
		i := slices.IndexFunc(rooms, func(r Room) bool { return matches(r.Dir, dir) })
		if i < 0 {
			t.Errorf("%s: the table in house_test.go does not list this package", dir)
			continue
		}
		seen[rooms[i].Dir] = true
		commented, code := false, false
		for filename, file := range files {
			test := strings.HasSuffix(filename, "_test.go")
			commented = commented || !test && file.Doc != nil
			code = code || !test
			if !test {
				for _, name := range uncommented(file) {
					t.Errorf("%s: %s has no comment", filename, name)
				}
			}
			allowed := rooms[i].Imports
			if test {
				allowed = slices.Concat(allowed, rooms[i].Tests)
			}
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				testkit.Must(t, err)
				if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
					continue // the standard library
				}
				if test && (imported == path.Join(module, dir) || imported == Root+"/internal/prove/testkit") {
					continue
				}
				if !slices.ContainsFunc(allowed, func(a string) bool { return matches(a, imported) }) {
					t.Errorf("%s may not import %s", filename, imported)
				}
			}
		}
		if code && !commented {
			t.Errorf("%s: the package has no comment", dir)
		}
	}
	for _, r := range rooms {
		if !seen[r.Dir] {
			t.Errorf("%s: the table in house_test.go lists it, but there is no such package", r.Dir)
		}
	}
}

// uncommented returns the exported names of the file that need a comment and have none:
// types, constants, variables, functions, and methods of exported types. One comment on a
// group is enough for the group. A method that the standard library defines needs none.
func uncommented(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if recv := receiver(d); d.Doc == nil && d.Name.IsExported() && !known[d.Name.Name] && (recv == "" || ast.IsExported(recv)) {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
						names = append(names, s.Name.Name)
					}
				case *ast.ValueSpec:
					if s.Names[0].IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
						names = append(names, s.Names[0].Name)
					}
				}
			}
		}
	}
	return names
}

// known are the methods that the standard library defines.
var known = map[string]bool{
	"Error": true, "Unwrap": true, "String": true, "Len": true, "Less": true, "Swap": true, "Push": true, "Pop": true,
	"MarshalJSON": true, "UnmarshalJSON": true, "Read": true, "Write": true, "Header": true, "WriteHeader": true, "RoundTrip": true,
}

// receiver returns the name of a method's type, or "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	e := f.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
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

// packages parses the Go files of the module in the working directory, by folder and file.
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
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
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
	testkit.Must(t, err)
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
	b := testkit.ReadFile(t, "go.mod")
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			module = strings.TrimSpace(name)
		}
	}
	if module == "" {
		t.Fatal("go.mod names no module")
	}
	// Only in the workspace does a module build without it.
	if module != Root && !strings.Contains(string(b), Root+" v") {
		t.Errorf("go.mod does not require %s", Root)
	}
	return module
}

// Readme checks that the module's README has each of the texts and is not longer than that many
// lines, and that each test that it names is there. It returns the README.
func Readme(t *testing.T, most int, want ...string) string {
	t.Helper()
	readme := read(t, "README.md")
	for _, text := range want {
		if !strings.Contains(readme, text) {
			t.Errorf("README.md does not have %q", text)
		}
	}
	if n := strings.Count(readme, "\n"); n > most {
		t.Errorf("README.md has %d lines; at most %d", n, most)
	}
	files, err := filepath.Glob("*_test.go")
	testkit.Must(t, err)
	tests := read(t, files...)
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(readme, -1) {
		if !strings.Contains(tests, "func "+name[1]+"(") {
			t.Errorf("README.md names %s, which is not there", name[1])
		}
	}
	return readme
}

// ReadmeRuns checks that the code of the README is that of example_test.go, which is compiled
// and run.
func ReadmeRuns(t *testing.T) {
	t.Helper()
	example := read(t, "example_test.go")
	lines := 0
	for i, part := range strings.Split(read(t, "README.md"), "```") {
		if i%2 == 0 {
			continue // no code
		}
		for line := range strings.Lines(strings.TrimPrefix(part, "go\n")) {
			lines++
			if !strings.Contains(example, line) {
				t.Errorf("the example does not have %q", line)
			}
		}
	}
	if lines == 0 {
		t.Error("README.md has no code")
	}
}

func read(t *testing.T, names ...string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range names {
		b := testkit.ReadFile(t, name)
		text.Write(b)
	}
	return text.String()
}
