//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/cmd/dibs/internal/command"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/anystore"
)

// scope owns the servers that several tests share.
var scope = servertest.NewScope()

// asProgram in the environment makes the test binary the program. It is passed
// on to what that starts.
const asProgram = "DIBS_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	command.Child() // whose environment is empty
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Setenv(asProgram, "1")
	os.Unsetenv("DIBS_STORE")
	testkit.Main(m, nil, scope.Close)
}

// process is the program in a process of its own.
type process struct {
	*exec.Cmd
	stdout, stderr testkit.Output
	done           chan struct{} // closed when it has ended

	url   string // of a proxy
	admin string
}

// start starts the program. It is killed at the end of the test.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startWith(t, nil, args...)
}

// startWith is start with variables added to the environment.
func startWith(t *testing.T, variables []string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	testkit.Must(t, err)
	p := &process{Cmd: exec.Command(exe, args...), done: make(chan struct{})}
	p.Dir, p.Env = t.TempDir(), append(os.Environ(), variables...)
	p.begin(t)
	return p
}

// begin starts the process, which may have been changed.
func (p *process) begin(t *testing.T) {
	t.Helper()
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	testkit.Must(t, p.Start())
	go func() {
		defer close(p.done)
		p.Wait()
	}()
	t.Cleanup(func() {
		p.Process.Signal(syscall.SIGCONT)
		p.Process.Kill()
		<-p.done
		if t.Failed() {
			said := p.stdout.String() + p.stderr.String()
			t.Logf("%s:\n%s", strings.Join(p.Args[1:], " "), said[max(0, len(said)-2000):])
		}
	})
}

// code waits for the end and returns the exit code, -1 for a signal's death.
func (p *process) code(t *testing.T) int {
	t.Helper()
	testkit.Await(t, fmt.Sprintf("the end of %v", p.Args[1:]), p.done)
	return p.ProcessState.ExitCode()
}

// signal sends a signal to the process.
func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	testkit.Must(t, p.Process.Signal(s))
}

// run runs the program to its end.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := start(t, args...)
	code = p.code(t)
	return code, p.stdout.String(), p.stderr.String()
}

// startProxy starts a proxy before the origin, with flags and variables (DIBS_…), and waits until it
// serves. It waits long for the
// store, because this machine may pause during a call.
func startProxy(t *testing.T, origin, store string, flags ...string) *process {
	t.Helper()
	args, variables := []string{"proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", origin, "--store", store}, []string{"DIBS_PROXY_STORE_TIMEOUT=1m"}
	for _, flag := range flags {
		if strings.HasPrefix(flag, "DIBS_") {
			variables = append(variables, flag)
		} else {
			args = append(args, flag)
		}
	}
	p := startWith(t, variables, args...)
	p.awaitServing(t)
	return p
}

func (p *process) awaitServing(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "it serves", func() bool {
		select {
		case <-p.done:
			t.Fatalf("the proxy exited with %d: %s", p.ProcessState.ExitCode(), p.stderr.String())
		default:
		}
		return strings.HasSuffix(p.stdout.String(), "\n")
	})
	line := strings.TrimSpace(p.stdout.String())
	if strings.Contains(line, "\n") {
		t.Fatalf("the proxy printed more than a line: %q", line)
	}
	for word := range strings.FieldsSeq(strings.ReplaceAll(line, ",", " ")) {
		if strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://") {
			if p.url == "" {
				p.url = word
			}
			p.admin = word // the last one
		}
	}
}

// sqliteStore returns the URL of a new store.
func sqliteStore(t *testing.T) string {
	return "sqlite:" + filepath.Join(t.TempDir(), "dibs.db")
}

// migrated makes the tables of a store and returns its URL.
func migrated(t *testing.T, url string) string {
	t.Helper()
	_, err := anystore.Migrate(t.Context(), url)
	testkit.Must(t, err)
	return url
}

// counter is an origin that counts the requests that it runs, by their key.
type counter struct {
	*httptest.Server
	mu   sync.Mutex
	runs map[string]int
	// hold, when not nil, is called in the middle of each run.
	hold func(r *http.Request)
}

func newCounter(t *testing.T, hold func(*http.Request)) *counter {
	t.Helper()
	c := &counter{runs: make(map[string]int), hold: hold}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	c.mu.Lock()
	c.runs[key]++
	n := c.runs[key]
	c.mu.Unlock()
	io.Copy(io.Discard, r.Body)
	if c.hold != nil {
		c.hold(r)
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("X-Fence", r.Header.Get("Dibs-Fence"))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "run %d of %s", n, key)
}

// of returns how often a key ran.
func (c *counter) of(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[key]
}

// total returns how many keys ran.
func (c *counter) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.runs)
}

// reply is an answer that was read.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// post sends a request with a key.
func post(ctx context.Context, client *http.Client, url, key, body string) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, testkit.Limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.GetBody = nil            // no retries by net/http
	req.Host = "api.example.com" // as if behind one name: hosts share no keys
	req.Header.Set("Idempotency-Key", key)
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(text)}, err
}

// mustPost is post that fails the test on an error.
func mustPost(t *testing.T, url, key, body string) reply {
	t.Helper()
	r, err := post(t.Context(), http.DefaultClient, url, key, body)
	testkit.Must(t, err)
	return r
}

// readLine reads one line from a connection.
func readLine(t *testing.T, r io.Reader) string {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	testkit.Must(t, err)
	return strings.TrimSpace(line)
}

// retryAfter returns the seconds after which to retry; 0 when it is not said.
func retryAfter(r reply) int {
	n, err := strconv.Atoi(r.header.Get("Retry-After"))
	if err != nil {
		return 0
	}
	return n
}
