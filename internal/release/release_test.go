package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// repository has this tree, as it is here and now, as its only commit.
func repository(t *testing.T) string {
	t.Helper()
	tree, err := filepath.Abs("../..")
	testkit.Must(t, err)
	dir := filepath.Join(t.TempDir(), ".git")
	for name, value := range map[string]string{"GIT_AUTHOR_NAME": "A Tester", "GIT_AUTHOR_EMAIL": "tester@example.com", "GIT_COMMITTER_NAME": "A Tester", "GIT_COMMITTER_EMAIL": "tester@example.com"} {
		t.Setenv(name, value)
	}
	for _, arguments := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message", "the tree"}} {
		if _, err := output(t.Context(), tree, nil, "git", append([]string{"--git-dir=" + dir, "--work-tree=" + tree}, arguments...)...); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Every module can be released as the tree is: no file has a name that Go or a system
// refuses, and a user who gets a library or the program gets all that it needs.
func TestReleasable(t *testing.T) {
	r, err := prepare(t.Context(), repository(t), t.TempDir(), "v0.0.1")
	testkit.Must(t, err)
	defer r.close()
	order := make([]string, len(r.modules))
	for i, m := range r.modules {
		order[i] = m.dir
	}
	if order[0] != "" || !slices.Contains(order, program) || slices.Contains(order, "examples") {
		t.Errorf("released are %q, want the root first, the program, and not the examples", order)
	}
	for _, c := range clients {
		for _, name := range c.versions {
			text, err := os.ReadFile(filepath.Join(r.clone, c.dir, name))
			testkit.Must(t, err)
			if m := versionOf.FindString(string(text)); !strings.HasSuffix(m, `"0.0.1"`) {
				t.Errorf("%s/%s has %s", c.dir, name, m)
			}
		}
	}
	tagged, err := installLines(r.clone)
	if !strings.Contains(r.untagged, "git clone") || !strings.HasPrefix(tagged, "go get ") || err != nil {
		t.Errorf("the README says %s before the release and %s after it, %v", r.untagged, tagged, err)
	}
	for _, dir := range []string{"stores/sqlitestore", program, "cmd/dibs-prove"} {
		user := t.TempDir()
		for _, arguments := range [][]string{{"mod", "init", "example.com/user"}, {"get", sibling{dir: dir}.path() + "@v0.0.1"}, {"list", "-deps", sibling{dir: dir}.path()}} {
			if _, err := output(t.Context(), user, r.env, "go", arguments...); err != nil {
				t.Error(err)
			}
		}
	}
}

// A release that fails leaves nothing behind, so that it can be made again.
func TestFailedRelease(t *testing.T) {
	t.Chdir(t.TempDir()) // has no go.work
	for _, arguments := range [][]string{{"init", "--quiet"}, {"-c", "user.name=A Tester", "-c", "user.email=tester@example.com", "commit", "--quiet", "--allow-empty", "--message", "nothing"}} {
		if _, err := output(t.Context(), ".", nil, "git", arguments...); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "release")
	if err := run("v0.0.1", dir); err == nil {
		t.Error("a repository without modules was released")
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of a release that failed is there: %v", err)
	}
}

// A file that Go refuses in a module is found before a user needs the module.
func TestRefusedName(t *testing.T) {
	dir := t.TempDir()
	r := &release{version: "v0.0.1", clone: dir, proxy: t.TempDir()}
	for name, text := range map[string]string{"go.mod": "module " + root + "\n", "nul": "0"} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, arguments := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"-c", "user.name=A Tester", "-c", "user.email=tester@example.com", "commit", "--quiet", "--message", "a name"}} {
		if _, err := output(t.Context(), dir, nil, "git", arguments...); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.publish(sibling{}); err == nil {
		t.Error("a module with a file named nul was made")
	}
}
