package main

import (
	"os"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/dibs-go/dibs/internal/testkit"
)

// TestSystems: the program and its tests, with all that they import, have no error of type on
// the other systems that a release has archives for. They are read and not compiled, which costs
// a tenth.
func TestSystems(t *testing.T) {
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
			}, "./...")
			testkit.Must(t, err)
			seen := map[string]bool{}
			packages.Visit(loaded, nil, func(p *packages.Package) {
				seen[p.PkgPath] = true
				for _, e := range p.Errors {
					t.Error(e)
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
