package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/module"
)

// licences returns the licences of everything in a binary that is not ours: the text of
// Go's, and every text that a module in the module cache has. A module without one is an
// error, because nothing says then that its code may be passed on.
func licences(info *buildinfo.BuildInfo, goroot, cache string) ([]byte, error) {
	var all bytes.Buffer
	text, err := os.ReadFile(filepath.Join(goroot, "LICENSE"))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&all, "The program contains Go's standard library and these modules, under their own licences.\n\n==== Go %s: LICENSE\n\n%s\n", strings.TrimPrefix(info.GoVersion, "go"), text)
	for _, m := range info.Deps {
		if m.Path == root || strings.HasPrefix(m.Path, root+"/") {
			continue
		}
		path, err := module.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		version, err := module.EscapeVersion(m.Version)
		if err != nil {
			return nil, err
		}
		dir := os.DirFS(filepath.Join(cache, filepath.FromSlash(path)+"@"+version))
		names, err := licenceFiles(dir)
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("%s %s has no licence", m.Path, m.Version)
		}
		for _, name := range names {
			text, err := fs.ReadFile(dir, name)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&all, "==== %s %s: %s\n\n%s\n", m.Path, m.Version, name, text)
		}
	}
	return all.Bytes(), nil
}

// licenceName matches the name of a file that has a licence or belongs to one.
var licenceName = regexp.MustCompile(`(?i)^[^.]*(licen[cs]e|copying|notice|patents)[^.]*(\.txt|\.md)?$`)

// licenceFiles are the files of a module that have its licences. Its subfolders may have
// the code of others.
func licenceFiles(dir fs.FS) (names []string, err error) {
	err = fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case !d.IsDir() && licenceName.MatchString(d.Name()):
			names = append(names, name)
		}
		return nil
	})
	return names, err
}
