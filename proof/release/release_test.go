//go:build nightly

// Package release_test makes a release of the tree and tries everything in it as its users will:
// modules from the tags, programs from the archives, clients from their packages.
package release_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

const root = "github.com/dibs-go/dibs"

var (
	version = flag.String("version", "v0.0.1", "the `VERSION` of the release")
	to      = flag.String("to", "", "keep the release in this new `FOLDER`")
)

// run runs a command in a folder and returns what it printed.
func run(t *testing.T, dir string, env []string, name string, arguments ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, arguments...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	said, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, said)
	}
	return string(said)
}

// repository returns a repository that has this tree, as it is here and now, as its only commit.
func repository(t *testing.T) string {
	tree, dir := abs(t, "../.."), filepath.Join(t.TempDir(), ".git")
	for name, value := range map[string]string{
		"GIT_AUTHOR_NAME": "A Tester", "GIT_AUTHOR_EMAIL": "tester@example.com", "GIT_COMMITTER_NAME": "A Tester", "GIT_COMMITTER_EMAIL": "tester@example.com",
	} {
		t.Setenv(name, value)
	}
	for _, arguments := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message", "the tree"}} {
		run(t, tree, nil, "git", append([]string{"--git-dir=" + dir, "--work-tree=" + tree}, arguments...)...)
	}
	return dir
}

func abs(t *testing.T, path string) string {
	path, err := filepath.Abs(path)
	testkit.Must(t, err)
	return path
}

// block returns the first block of code of a page in a language that has a text.
func block(t *testing.T, page, language, text string) string {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(string(testkit.ReadFile(t, page)), -1) {
		if strings.Contains(m[1], text) {
			return m[1]
		}
	}
	t.Fatalf("%s has no %s with %s", page, language, text)
	return ""
}

// TestRelease: what users will do on the day of the release works today.
func TestRelease(t *testing.T) {
	testkit.Must(t, servertest.InstallPackagers())
	from, folder := "../..", *to
	if folder == "" {
		from, folder = repository(t), filepath.Join(t.TempDir(), "release")
	}
	t.Cleanup(func() {
		if t.Failed() {
			os.RemoveAll(folder) // what it has may look like a release
		}
	})
	published := run(t, ".", nil, "./release.sh", from, *version, folder)
	folder = abs(t, folder)
	clone, downloads := filepath.Join(folder, "clone"), filepath.Join(folder, "downloads")

	// A machine that has nothing of ours; the tags are at the address of the repository.
	scratch, cache := t.TempDir(), strings.TrimSpace(run(t, ".", nil, "go", "env", "GOMODCACHE"))
	config := filepath.Join(scratch, "gitconfig")
	run(t, ".", nil, "git", "config", "--file", config, "url."+clone+".insteadOf", "https://"+root)
	bin := filepath.Join(scratch, "bin")
	env := []string{
		"GOPROXY=file://" + cache + "/cache/download," + strings.TrimSpace(run(t, ".", nil, "go", "env", "GOPROXY")),
		"GONOPROXY=" + root, "GONOSUMDB=" + root, "GOENV=off", "GOWORK=", "GOFLAGS=-trimpath -modcacherw", "GOTOOLCHAIN=local", "CGO_ENABLED=0",
		"GOMODCACHE=" + filepath.Join(scratch, "modules"), "GOBIN=" + bin, "GIT_CONFIG_GLOBAL=" + config,
	}
	servers := servertest.NewScope()
	t.Cleanup(servers.Close)
	env = append(env, "REDIS="+servertest.Redis(servers, nil).URL(), "POSTGRES="+servertest.Postgres(servers, nil).URL(),
		"MYSQL="+servertest.MariaDB(servers, nil).URL(), "ETCD="+servertest.Etcd(servers, nil).URL(),
		"S3="+servertest.S3(servers).Store(""), "AWS_ACCESS_KEY_ID="+servertest.S3Access, "AWS_SECRET_ACCESS_KEY="+servertest.S3Secret)
	isVersion := func(t *testing.T, program string) {
		if said := run(t, ".", nil, program, "--version"); !strings.HasPrefix(said, filepath.Base(program)+" "+*version) {
			t.Errorf("it says %q, want %s %s", said, filepath.Base(program), *version)
		}
	}
	module := func(t *testing.T, program string) string {
		dir := t.TempDir()
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "main.go"), testkit.ReadFile(t, filepath.Join("testdata", program+".txt")), 0o644))
		run(t, dir, env, "go", "mod", "init", "example.com/user")
		return dir
	}

	tags := strings.Fields(run(t, clone, nil, "git", "tag", "--points-at", "HEAD"))
	_, pushed, _ := strings.Cut(published, " push --atomic REMOTE ")
	if pushes := strings.Fields(pushed); len(tags) < 14 || !slices.Equal(slices.Sorted(slices.Values(pushes)), slices.Sorted(slices.Values(tags))) {
		t.Errorf("the commit has the tags %q, and to be pushed are %q", tags, pushes)
	}
	for _, tag := range tags {
		dir := strings.TrimSuffix(strings.TrimSuffix(tag, *version), "/")
		path := strings.TrimSuffix(root+"/"+dir, "/")
		t.Run("module/"+dir, func(t *testing.T) {
			// As CI does with a checkout of the tag.
			run(t, filepath.Join(clone, dir), append(slices.Clone(env), "GOWORK=off"), "go", "list", "-deps", "-test", "./...")
			if strings.HasPrefix(dir, "cmd/") {
				run(t, scratch, env, "go", "install", path+"@"+*version)
				isVersion(t, filepath.Join(bin, filepath.Base(dir)))
				return
			}
			user := module(t, filepath.Base(path))
			for _, arguments := range [][]string{{"get", path + "@" + *version}, {"mod", "tidy"}, {"run", "."}} {
				run(t, user, env, "go", arguments...)
			}
		})
	}
	t.Run("README", func(t *testing.T) {
		run(t, module(t, "sqlitestore"), env, "sh", "-ec", block(t, filepath.Join(clone, "README.md"), "sh", "go get")+"go run .\n")
	})

	run(t, downloads, nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
	user := t.TempDir()
	for _, program := range []string{"dibs", "dibs-prove"} {
		name := program + "_" + *version + "_" + runtime.GOOS + "_" + runtime.GOARCH
		t.Run("archive/"+program, func(t *testing.T) {
			run(t, downloads, nil, "tar", "-xzf", name+".tar.gz", "--strip-components=1", "-C", user)
			binary, licences := filepath.Join(user, "bin", program), string(testkit.ReadFile(t, filepath.Join(user, "share/doc", program, "LICENSES.txt")))
			isVersion(t, binary)
			bill := string(testkit.ReadFile(t, filepath.Join(downloads, name+".cdx.json")))
			if !strings.Contains(bill, "pkg:golang/stdlib@1") || !strings.Contains(licences, "The Go Authors") {
				t.Error("Go's standard library is not in the SBOM, or its licence not in LICENSES.txt")
			}
			for _, m := range regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)`).FindAllStringSubmatch(run(t, ".", nil, "go", "version", "-m", binary), -1) {
				if !strings.Contains(bill, `"pkg:golang/`+m[1]+"@"+m[2]) {
					t.Errorf("%s %s is not in the SBOM", m[1], m[2])
				}
				if ours := strings.HasPrefix(m[1], root); strings.Contains(licences, "\n==== "+m[1]+"@"+m[2]+": ") == ours {
					t.Errorf("LICENSES.txt has %s %s: %v", m[1], m[2], ours)
				}
			}
		})
	}
	for name, part := range map[string]string{
		"man/man1/dibs.1": ".TH DIBS 1 ", "bash-completion/completions/dibs": "__complete", "zsh/site-functions/_dibs": "#compdef dibs",
		"fish/vendor_completions.d/dibs.fish": "complete -c dibs", "powershell/dibs.ps1": "Register-ArgumentCompleter",
	} {
		if text := string(testkit.ReadFile(t, filepath.Join(user, "share", name))); !strings.Contains(text, part) {
			t.Errorf("%s does not have %q: %.100q", name, part, text)
		}
	}
	run(t, user, nil, "bash", "-n", "share/bash-completion/completions/dibs")
	for _, c := range clients {
		t.Run("client/"+c.language, func(t *testing.T) {
			c.try(t, filepath.Join(clone, "clients", c.language, "README.md"), downloads, filepath.Join(user, "bin"))
		})
	}
	if *to == "" {
		again := filepath.Join(t.TempDir(), "again")
		run(t, ".", nil, "./release.sh", from, *version, again)
		if sums := run(t, again, nil, "cat", "downloads/SHA256SUMS"); sums != run(t, downloads, nil, "cat", "SHA256SUMS") {
			t.Errorf("the second release of the commit has other files:\n%s", sums)
		}
	}
}

// A client is that of a language: its package, and how its README's lines are run.
type client struct{ language, file, made, empty, fence, program, run, licence string }

var clients = []client{
	{"ruby", "dibs-*.gem", "dibs-%s.gem", "export GEM_HOME=$HOME/gems", "ruby", "ten.rb", "ruby ten.rb", "gems/gems/dibs-*/LICENSE"},
	{"python", "dibs-*.whl", "dibs-%s-py3-none-any.whl", "/usr/bin/python3 -m venv venv && . venv/bin/activate", "python", "ten.py", "python ten.py", "venv/lib/python3*/site-packages/dibs-*.dist-info/LICENSE"},
	{"js", "dibs-*.tgz", "dibs-%s.tgz", "npm init --yes", "js", "ten.mjs", "node ten.mjs", "node_modules/dibs/LICENSE"},
}

// try does what a client's README says, in an empty folder and without a network: it installs the
// package, starts dibs serve, and runs the ten lines.
func (c *client) try(t *testing.T, page, downloads, bin string) {
	home, err := os.MkdirTemp("", "dibs-user") // short, because the path of a socket must be
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	socket := filepath.Join(home, "dibs.sock")
	testkit.Must(t, os.WriteFile(filepath.Join(home, c.program), []byte(block(t, page, c.fence, "once")), 0o644))
	script := strings.Join([]string{
		"cp " + filepath.Join(downloads, fmt.Sprintf(c.made, strings.TrimPrefix(*version, "v"))) + " .", c.empty, block(t, page, "sh", c.file),
		strings.ReplaceAll(strings.TrimSpace(block(t, page, "sh", "dibs serve")), "/tmp/dibs.sock", socket) + " >serve.log & trap 'kill $!' EXIT",
		"until grep -q 'listening on' serve.log; do kill -0 $!; sleep 0.1; done",
		c.run + " >printed",
	}, "\n")
	run(t, home, []string{
		"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH"), "DIBS_SERVER=unix:" + socket,
		"PIP_NO_INDEX=1", "npm_config_offline=true", "http_proxy=http://127.0.0.1:1", "https_proxy=http://127.0.0.1:1",
	}, "sh", "-ec", script)
	printed := string(testkit.ReadFile(t, filepath.Join(home, "printed")))
	if !regexp.MustCompile(`^page 0 with fence \d+\npage 1 with fence \d+\npage 2 with fence \d+\n100\n$`).MatchString(printed) {
		t.Errorf("the ten lines print %q", printed)
	}
	if licences, _ := filepath.Glob(filepath.Join(home, c.licence)); len(licences) != 1 {
		t.Errorf("%d licences are installed", len(licences))
	}
}
