//go:build unix

package command_test

import (
	"debug/elf"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// installed is where the files of deploy/ have the program.
const installed = "/usr/local/bin/dibs"

// TestDockerfile: the commands of the Dockerfile build a static program here, too, and the
// image has it, for a user without rights, under the Go version of go.mod.
func TestDockerfile(t *testing.T) {
	top, out := filepath.Join(deploy, ".."), t.TempDir()
	made := func(path string) string { return strings.ReplaceAll(path, "/out/", out+"/") }
	mod := testkit.ReadFile(t, filepath.Join(top, "go.mod"))
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(mod))[1]
	image := map[string]string{} // where a copy comes from
	last := map[string]string{}  // of each other instruction, in the last stage
	for _, m := range regexp.MustCompile(`(?m)^([A-Z]+) (.*)$`).FindAllStringSubmatch(readDeploy(t, "Dockerfile"), -1) {
		switch name, rest := m[1], m[2]; name {
		case "FROM":
			clear(last)
			last[name] = rest
			if from, ok := strings.CutPrefix(rest, "golang:"); ok && from != version+" AS build" {
				t.Errorf("FROM %s; go.mod says %s", rest, version)
			}
		case "RUN":
			cmd := exec.Command("sh", "-c", made(rest))
			cmd.Dir = top
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", rest, err, said)
			}
		case "COPY":
			words := strings.Fields(rest)
			from, to := words[len(words)-2], words[len(words)-1]
			if words[0] == "--from=build" {
				image[to] = from
			}
			if _, err := os.Stat(made(from)); strings.HasPrefix(from, "/out/") && err != nil {
				t.Error(err)
			}
		case "WORKDIR", "USER", "ENTRYPOINT", "ENV", "HEALTHCHECK":
			last[name] = rest
		default:
			t.Errorf("this test does not know %s", name)
		}
	}
	var entry []string
	testkit.Must(t, json.Unmarshal([]byte(last["ENTRYPOINT"]), &entry))
	if last["FROM"] != "scratch" || last["USER"] != "65532:65532" || len(entry) != 1 || entry[0] != installed {
		t.Errorf("the image is %q with %q", last, image)
	}
	program := made(image[entry[0]])
	if said, err := exec.Command(program, "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(said), "dibs ") {
		t.Errorf("its program says %q, %v", said, err)
	}
	checkStatic(t, program)
	checkImage(t, made(image["/"]), program, last)
}

// checkStatic: the program needs no other file to start.
func checkStatic(t *testing.T, program string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return // what was built is not what the image would have
	}
	f, err := elf.Open(program)
	testkit.Must(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("its program is not static")
		}
	}
}

// checkImage starts a proxy in the image, as its user: it keeps a long body, and its health check
// asks it. Without the folder for long bodies it does not start. files is what is copied to the
// image's root.
func checkImage(t *testing.T, files, built string, image map[string]string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("only root can start a proxy in the image")
		return
	}
	testkit.Must(t, os.MkdirAll(filepath.Join(files, filepath.Dir(installed)), 0o755))
	testkit.Must(t, os.Rename(built, filepath.Join(files, installed)))
	const user = 65532
	b := newBench(t)
	b.store = "memory:" // because a file's store reads /proc
	admin, listen := servertest.Addr(t), servertest.Addr(t)
	name, value, _ := strings.Cut(image["ENV"], "=")
	if name != "DIBS_PROXY_ADMIN" || value != "127.0.0.1:9090" {
		t.Errorf("its environment is %q", image["ENV"])
	}
	inside := func(args ...string) *program {
		p := b.command(args...)
		p.Path, p.Dir = installed, image["WORKDIR"]
		p.Env = []string{"DIBS_STORE=" + b.store, name + "=" + admin}
		p.SysProcAttr = &syscall.SysProcAttr{Chroot: files, Credential: &syscall.Credential{Uid: user, Gid: user}}
		return p.begin(t)
	}
	p := inside("proxy", "--listen", listen, "--upstream", counting(t).URL)
	waitFor(t, p, "http://"+admin+"/readyz")
	sendTwice(t, "http://"+listen)
	_, check, _ := strings.Cut(image["HEALTHCHECK"], "CMD ")
	var health []string
	testkit.Must(t, json.Unmarshal([]byte(check), &health))
	if asked := inside(health[1:]...); health[0] != installed || asked.code(t) != 0 {
		t.Errorf("%q: %s", health, asked.stderr.String())
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 0 {
		t.Errorf("the proxy exited with %d", code)
	}
	if asked := inside(health[1:]...); asked.code(t) != 1 {
		t.Errorf("without a proxy the health check exits with %d", asked.code(t))
	}
	testkit.Must(t, os.Remove(filepath.Join(files, "tmp")))
	if p := inside("proxy", "--listen", listen, "--upstream", "http://127.0.0.1:1"); p.code(t) != 64 || !strings.Contains(p.stderr.String(), "max-body: ") {
		t.Errorf("without /tmp the proxy exited with %d: %s", p.code(t), p.stderr.String())
	}
}

// TestDockerignore: what the build needs is not ignored, and the ignored files of git are.
func TestDockerignore(t *testing.T) {
	top := filepath.Join(deploy, "..")
	ignored := strings.Fields(readDeploy(t, "../.dockerignore"))
	git := readDeploy(t, "../.gitignore")
	for line := range strings.FieldsSeq(git) {
		line = strings.Trim(line, "/")
		if !slices.Contains(ignored, line) && !slices.Contains(ignored, "**/"+line) {
			t.Errorf("%s is not in .dockerignore", line)
		}
	}
	for _, pattern := range ignored {
		name, everywhere := strings.CutPrefix(pattern, "**/")
		testkit.Must(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			ours, err := filepath.Rel(top, path)
			for _, needed := range []string{".go", ".mod", ".sum", ".work", ".sql", ".lua", ".md", ".html"} {
				if ok, _ := filepath.Match(name, d.Name()); ok && (everywhere || ours == d.Name()) && filepath.Ext(path) == needed {
					t.Errorf("%s ignores %s", pattern, ours)
				}
			}
			return err
		}))
	}
}
