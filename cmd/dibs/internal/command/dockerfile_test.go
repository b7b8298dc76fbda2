//go:build unix

package command_test

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
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

// deployed is a proxy or a server as a file of deploy/ starts it.
type deployed struct {
	args     []string
	config   string // the text of /etc/dibs/proxy.yaml, if there is one
	upstream string // its URL, as the file names it
	store    string
	text     string // of a file whose comment has the command that makes the tokens
}

// checkServes starts the program with addresses and files of this machine. The proxy or the server
// does its work, and ends.
func (d *deployed) checkServes(t *testing.T) {
	t.Helper()
	b := newBench(t)
	b.store = d.store
	if d.args[0] == "serve" {
		d.checkLends(t, b)
		return
	}
	origin := counting(t)
	listen, admin := servertest.Addr(t), servertest.Addr(t)
	here := strings.NewReplacer("0.0.0.0:8080", listen, "0.0.0.0:9090", admin, "127.0.0.1:9090", admin, d.upstream, origin.URL, "/etc/dibs/proxy.yaml", b.path("proxy.yaml"))
	b.write(t, "proxy.yaml", here.Replace(d.config))
	p := b.start(t, strings.Split(here.Replace(strings.Join(d.args, "\n")), "\n")...)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		waitFor(t, p, "http://"+admin+path)
	}
	sendTwice(t, "http://"+listen)
	p.checkEnds(t)
}

// awaitListening waits until the server accepts connections.
func (p *program) awaitListening(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "it listens", func() bool {
		select {
		case <-p.done:
			t.Fatalf("the server ended: %s", p.stderr.String())
		default:
		}
		return strings.Contains(p.stdout.String(), "listening on")
	})
}

// checkEnds ends the program as systemd and a container do.
func (p *program) checkEnds(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 0 {
		t.Errorf("it ends with %d", code)
	}
}

// makesTokens finds the command that prints a line of tokens.
var makesTokens = regexp.MustCompile(`(?m)^#   (echo .*) >\S*tokens$`)

// checkLends: a command runs under a key of the server. If there are tokens, it needs one, and
// SIGHUP replaces them without a pause.
func (d *deployed) checkLends(t *testing.T, b *bench) {
	t.Helper()
	dir, err := os.MkdirTemp("", "dibs") // short, because the path of a socket must be
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	listen := servertest.Addr(t)
	text := strings.Join(d.args, "\n")
	secure, tokens := strings.Contains(text, "--tls-cert"), strings.Contains(text, "--tokens")
	here := strings.NewReplacer("0.0.0.0:7331", listen, ":7331", listen, "/run/dibs/", dir+"/",
		"/etc/dibs-tls/", b.dir+"/", "/etc/dibs/", b.dir+"/", "/run/secrets/", b.dir+"/")
	admin, url := listen, "http://%s"+listen
	switch {
	case strings.Contains(text, "unix:"):
		admin, url = "unix:"+dir+"/dibs.sock", "http+unix:"+dir+"/dibs.sock"
	case secure:
		b.certificate(t)
		b.env = []string{"SSL_CERT_FILE=" + b.path("tls.crt")}
		url = "https://%s" + listen
	}
	line := func(name, token string) string {
		return fmt.Sprintf("%s %x shop use\n", name, sha256.Sum256([]byte(token)))
	}
	first := line("shop", "first")
	if command := makesTokens.FindStringSubmatch(d.text); command != nil {
		made, err := exec.Command("sh", "-ec", "TOKEN=first; "+command[1]).Output()
		testkit.Must(t, err)
		first = string(made)
	}
	b.write(t, "tokens", first)
	p := b.start(t, strings.Split(here.Replace(text), "\n")...)
	if secure {
		admin = "https://" + admin
	}
	p.awaitListening(t)
	b.says(t, 0, "ready\n", "", "healthcheck", admin)
	lends := func(token string) bool {
		at := url
		if strings.Contains(url, "%s") {
			at = fmt.Sprintf(url, token)
		}
		code, said, why := b.run(t, "run", "--store", at, "invoice 42", "--", "echo", "held")
		// It exits with 70 if the token was replaced while the command ran.
		if ran := code == 0 || code == 70; ran != (said == "held\n") || code != 0 && !strings.Contains(why, "credential") {
			t.Errorf("with %q the command exited with %d: %s%s", token, code, said, why)
		}
		return code == 0
	}
	if !tokens {
		if !lends("") {
			t.Error("it lends nothing")
		}
		p.checkEnds(t)
		return
	}
	for token, want := range map[string]bool{"": false, ":wrong@": false, ":first@": true} {
		if lends(token) != want {
			t.Errorf("it lends to %q: %v", token, !want)
		}
	}
	b.write(t, "tokens", first+line("shop-2", "second"))
	p.signal(t, syscall.SIGHUP)
	testkit.Eventually(t, "the second token is known", func() bool { return lends(":second@") })
	if !lends(":first@") {
		t.Error("the first token is refused while its line is there")
	}
	b.write(t, "tokens", line("shop-2", "second"))
	p.signal(t, syscall.SIGHUP)
	testkit.Eventually(t, "the first token is refused", func() bool { return !lends(":first@") })
	p.checkEnds(t)
}

// counting returns an origin that counts its runs.
func counting(t *testing.T) *httptest.Server {
	t.Helper()
	var runs atomic.Int64
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n < 1<<20 {
			http.Error(w, fmt.Sprintf("the body has %d bytes, %v", n, err), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "run %d", runs.Add(1))
	}))
	t.Cleanup(origin.Close)
	return origin
}

// sendTwice sends a request that no memory keeps, 2 MB, and its retry: it ran once.
func sendTwice(t *testing.T, proxy string) {
	t.Helper()
	for range 2 {
		request, err := http.NewRequestWithContext(t.Context(), "POST", proxy+"/v1/charges/17", strings.NewReader(strings.Repeat("amount=7&", 2<<20/9)))
		testkit.Must(t, err)
		request.Header.Set("Idempotency-Key", `"order-17"`)
		response, err := http.DefaultClient.Do(request)
		testkit.Must(t, err)
		text, err := io.ReadAll(response.Body)
		testkit.Must(t, err)
		testkit.Must(t, response.Body.Close())
		if response.StatusCode != 200 || string(text) != "run 1" {
			t.Errorf("the answer is %s %q", response.Status, text)
		}
	}
}

// waitFor waits until the URL answers 200.
func waitFor(t *testing.T, p *program, url string) {
	t.Helper()
	testkit.Eventually(t, url, func() bool {
		select {
		case <-p.done:
			t.Fatalf("the proxy ended: %s", p.stderr.String())
		default:
		}
		response, err := http.Get(url)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
}
