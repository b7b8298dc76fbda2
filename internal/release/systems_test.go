package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestSystems: the program and its tests have no error of type on the other systems that a release
// has archives for. They are read and not compiled, which costs a tenth. Of the modules of others
// only the declarations are read, because the nightly tests compile the rest.
func TestSystems(t *testing.T) {
	tree, err := filepath.Abs("../..")
	testkit.Must(t, err)
	ours := func(name string) bool { return strings.HasPrefix(name, tree+string(filepath.Separator)) }
	for _, s := range targets {
		if s.os == here.os || s.arch != here.arch {
			continue // make test compiles it, or it differs in the processor alone
		}
		t.Run(s.os, func(t *testing.T) {
			loaded, err := packages.Load(&packages.Config{
				Mode: packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
					packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedTypesSizes,
				Dir: "../../" + program, Tests: true,
				Env: append(os.Environ(), "CGO_ENABLED=0", "GOOS="+s.os, "GOARCH="+s.arch),
				ParseFile: func(set *token.FileSet, name string, text []byte) (*ast.File, error) {
					f, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
					if err == nil && !ours(name) {
						empty(f)
					}
					return f, err
				},
			}, "./...")
			testkit.Must(t, err)
			seen := map[string]bool{}
			packages.Visit(loaded, nil, func(p *packages.Package) {
				seen[p.PkgPath] = true
				if strings.HasPrefix(p.PkgPath, root) && !strings.HasSuffix(p.PkgPath, ".test") { // Go writes the latter's main
					for _, e := range p.Errors {
						t.Error(e)
					}
				}
			})
			for _, path := range []string{"syscall", "modernc.org/sqlite/lib"} {
				if !seen[path] {
					t.Errorf("%s was not looked at, of %d packages", path, len(seen))
				}
			}
		})
	}
}

// empty removes what the functions of a file do.
func empty(f *ast.File) {
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok {
			d.Body = nil
		}
	}
}
