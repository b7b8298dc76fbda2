package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// release is a release while it is made.
type release struct {
	version    string
	repository string // where the clone comes from
	untagged   string // the README's lines that install everything before a version is tagged
	modules    []sibling
	clone      string // has the commit and its tags
	proxy      string // the files that a module proxy would serve
	downloads  string // the built programs, to be put beside the release
	scratch    string // what goes with close: module caches of our own, because a user's own must not have a version that was never released
	env        []string
}

// prepare clones the repository into the folder, and makes each module's files and zip
// there, in the order in which they require one another, and the tags. Close it after use.
func prepare(ctx context.Context, repository, dir, version string) (_ *release, err error) {
	r := &release{version: version, repository: repository, clone: filepath.Join(dir, "clone"), proxy: filepath.Join(dir, "proxy"), downloads: filepath.Join(dir, "downloads")}
	if r.scratch, err = os.MkdirTemp("", "dibs-release"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := output(ctx, dir, nil, "git", "clone", "--quiet", repository, r.clone); err != nil {
		return nil, err
	}
	if err := r.environment(ctx); err != nil {
		return nil, err
	}
	if r.modules, err = siblings(r.clone); err != nil {
		return nil, err
	}
	for _, c := range clients {
		if err := c.pin(r.clone, version); err != nil {
			return nil, err
		}
	}
	if r.untagged, err = installLines(r.clone); err != nil {
		return nil, err
	}
	if err := tagReadme(r.clone); err != nil {
		return nil, err
	}
	for i, m := range r.modules {
		if err := r.add(ctx, m, i > 0); err != nil {
			return nil, fmt.Errorf("%s: %w", m.path(), err)
		}
	}
	for _, tag := range r.tags() {
		if _, err := output(ctx, r.clone, nil, "git", "tag", tag); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// close removes what only the trial needed.
func (r *release) close() { os.RemoveAll(r.scratch) }

// environment is that of a machine which has nothing of ours: no workspace, no module
// cache, and a proxy that serves the release. What others publish comes from this
// machine's cache as far as that has it; each module's go.sum says whether it is right.
func (r *release) environment(ctx context.Context) error {
	values, err := output(ctx, r.clone, nil, "go", "env", "GOMODCACHE", "GOPROXY")
	if err != nil {
		return err
	}
	cache, upstream, _ := strings.Cut(values, "\n")
	r.env = []string{
		"GOPROXY=file://" + filepath.ToSlash(r.proxy) + ",file://" + filepath.ToSlash(cache) + "/cache/download," + upstream,
		"GOMODCACHE=" + filepath.Join(r.scratch, "cache"), "GOENV=off", "GOWORK=off", "GOFLAGS=-modcacherw -trimpath",
		"GOTOOLCHAIN=local", "CGO_ENABLED=0", "GOPRIVATE=", "GONOPROXY=", "GONOSUMDB=*",
	}
	return nil
}

// add pins a module to its siblings' release, commits that, and puts the module into the
// proxy. All modules are one commit in the end.
func (r *release) add(ctx context.Context, m sibling, amend bool) error {
	if err := m.pin(r.clone, r.version); err != nil {
		return err
	}
	if _, err := output(ctx, filepath.Join(r.clone, m.dir), r.env, "go", "mod", "tidy"); err != nil {
		return err
	}
	arguments := []string{"commit", "--quiet", "--all", "--allow-empty", "--message", "release " + r.version}
	if amend {
		arguments = append(arguments, "--amend")
	}
	if _, err := output(ctx, r.clone, nil, "git", arguments...); err != nil {
		return err
	}
	return r.publish(m)
}

// publish writes what `go` asks a proxy for.
func (r *release) publish(m sibling) error {
	escaped, err := module.EscapePath(m.path())
	if err != nil {
		return err
	}
	dir := filepath.Join(r.proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(r.clone, m.dir, "go.mod"))
	if err != nil {
		return err
	}
	info := fmt.Sprintf("{\"Version\":%q,\"Time\":%q}\n", r.version, time.Now().UTC().Format(time.RFC3339))
	for name, text := range map[string]string{"list": r.version + "\n", r.version + ".info": info, r.version + ".mod": string(mod)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	archive, err := os.Create(filepath.Join(dir, r.version+".zip"))
	if err != nil {
		return err
	}
	defer archive.Close()
	if err := zip.CreateFromVCS(archive, module.Version{Path: m.path(), Version: r.version}, r.clone, "HEAD", m.dir); err != nil {
		return err
	}
	return archive.Close()
}

// tags are those that make the commit the version of every module.
func (r *release) tags() []string {
	tags := make([]string, len(r.modules))
	for i, m := range r.modules {
		tags[i] = m.tag(r.version)
	}
	return tags
}

// output runs a command and returns what it printed; an error has what it said.
func output(ctx context.Context, dir string, env []string, name string, arguments ...string) (string, error) {
	c := exec.CommandContext(ctx, name, arguments...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	var said strings.Builder
	c.Stderr = &said
	printed, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(arguments, " "), err, printed, said.String())
	}
	return strings.TrimSpace(string(printed)), nil
}
