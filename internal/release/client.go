package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// client is the client of a language. A release has its package, which the language's own tool
// makes.
type client struct {
	dir      string   // in the repository
	kind     string   // of its package URL
	versions []string // the files that have its version
	build    []string // the command; DIR and OUT are the folders of the client and of the package
	file     string   // the pattern of the package

	empty   string // what makes an empty environment, as a shell script
	fence   string // the language in its README
	program string // the file that has the README's lines
	run     string // what runs that
	licence string // the pattern of the installed licence
}

// clients are all.
var clients = []client{{
	dir: "clients/ruby", kind: "gem", versions: []string{"lib/dibs.rb"}, file: "dibs-*.gem",
	build: []string{"sh", "-ec", `gem build -C "DIR" dibs.gemspec && mv "DIR"/dibs-*.gem "OUT"`},
	empty: "export GEM_HOME=$HOME/gems", fence: "ruby", program: "ten.rb", run: "ruby ten.rb", licence: "gems/gems/dibs-*/LICENSE",
}, {
	dir: "clients/python", kind: "pypi", versions: []string{"dibs/__init__.py"}, file: "dibs-*.whl",
	// Without its own environment for the build, because that downloads setuptools.
	build: []string{python, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "OUT", "DIR"},
	empty: python + " -m venv venv && . venv/bin/activate", fence: "python", program: "ten.py", run: "python ten.py",
	licence: "venv/lib/python3*/site-packages/dibs-*.dist-info/LICENSE",
}, {
	dir: "clients/js", kind: "npm", versions: []string{"dibs.js", "package.json"}, file: "dibs-*.tgz",
	build: []string{"npm", "pack", "--pack-destination", "OUT", "DIR"},
	empty: "npm init --yes", fence: "js", program: "ten.mjs", run: "node ten.mjs", licence: "node_modules/dibs/LICENSE",
}}

// python is Debian's, because that has the packages pip, setuptools and wheel.
const python = "/usr/bin/python3"

// versionOf finds the version in a file of a client.
var versionOf = regexp.MustCompile(`((?:\bVERSION|\b__version__) = |"version": )"[^"]*"`)

// pin gives the client the version. RubyGems, pip and npm each understand what Go understands.
func (c *client) pin(repository, version string) error {
	for _, name := range c.versions {
		path := filepath.Join(repository, c.dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := len(versionOf.FindAllIndex(text, -1)); n != 1 {
			return fmt.Errorf("%s/%s has %d versions, want one", c.dir, name, n)
		}
		text = versionOf.ReplaceAll(text, []byte(`${1}"`+strings.TrimPrefix(version, "v")+`"`))
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// packClient makes the client's package in the folder and returns its path. The same commit makes
// the same package.
func (r *release) packClient(ctx context.Context, c *client, to string) (string, error) {
	licence, err := os.ReadFile(filepath.Join(r.clone, "LICENSE"))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(r.clone, c.dir)
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"), licence, 0o644); err != nil {
		return "", err
	}
	when, err := r.committed(ctx)
	if err != nil {
		return "", err
	}
	command := make([]string, len(c.build))
	for i, word := range c.build {
		command[i] = strings.NewReplacer("DIR", dir, "OUT", to).Replace(word)
	}
	env := []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", when.Unix())}
	if _, err := output(ctx, r.scratch, env, command[0], command[1:]...); err != nil {
		return "", err
	}
	made, err := filepath.Glob(filepath.Join(to, c.file))
	if err != nil {
		return "", err
	}
	if len(made) != 1 {
		return "", fmt.Errorf("there are %d packages %s, want one", len(made), c.file)
	}
	return made[0], nil
}

// downloadClient makes the package of the client and its SBOM, and tries it.
func (r *release) downloadClient(ctx context.Context, c *client, dibs string) error {
	path, err := r.packClient(ctx, c, r.downloads)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	bill, err := c.sbom(r.version, fmt.Sprintf("%x", sha256.Sum256(text)))
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".cdx.json", bill, 0o644); err != nil {
		return err
	}
	return r.tryClient(ctx, c, path, dibs)
}
