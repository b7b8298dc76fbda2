//go:build nightly

package browser

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// program returns the path of the program dibs.
func program(t *testing.T) string {
	t.Helper()
	path, err := servertest.Dibs()
	testkit.Must(t, err)
	return path
}

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// night is a store, and real programs that use it.
type night struct {
	*testing.T
	folder string
	env    []string
}

func newNight(t *testing.T) *night {
	t.Helper()
	folder := t.TempDir()
	return &night{t, folder, append(os.Environ(), "DIBS_STORE=sqlite:"+filepath.Join(folder, "dibs.db"), "PATH="+filepath.Dir(program(t))+":"+os.Getenv("PATH"))}
}

// running is a program that runs.
type running struct {
	*exec.Cmd
	out   testkit.Output
	ended chan struct{}
}

// command returns a command with the store in its environment.
func (n *night) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(n.Context(), args[0], args[1:]...)
	cmd.Env, cmd.Dir = n.env, n.folder
	return cmd
}

// begin starts a program, which ends with the test.
func (n *night) begin(args ...string) *running {
	n.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(n.Context()), args[0], args[1:]...)
	cmd.Env, cmd.Dir = n.env, n.folder
	p := &running{Cmd: cmd, ended: make(chan struct{})}
	out, err := p.StdoutPipe()
	testkit.Must(n, err)
	p.Stderr = &p.out
	testkit.Must(n, p.Start())
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(&p.out, bufio.NewReader(out))
		_ = p.Wait()
	}()
	n.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
	return p
}

// after returns the word behind a text of what a program has printed.
func (n *night) after(p *running, text string) (word string) {
	n.Helper()
	testkit.Eventually(n, "a program prints "+text, func() bool {
		_, rest, found := strings.Cut(p.out.String(), text)
		if found && strings.ContainsAny(rest, " ,\n") {
			word = strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(" ,\n", r) })[0]
		}
		return word != ""
	})
	return word
}

// proxy starts dibs proxy in front of a service. It returns its address and that of its page.
func (n *night) proxy(service *httptest.Server, flags ...string) (p *running, url, page string) {
	n.Helper()
	p = n.begin(append([]string{program(n.T), "proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", service.URL}, flags...)...)
	return p, n.after(p, "listening on "), n.after(p, "admin ")
}

// order sends the order that the customer sends.
func (n *night) order(ctx context.Context, url string) (status int, text string, err error) {
	req := testkit.Request(ctx, n, http.MethodPost, url+"/charges", strings.NewReader(`{"amount":1999}`))
	req.Host = "shop.example" // a key belongs to a host, and every proxy serves this one
	req.GetBody = nil         // because net/http would retry
	req.Header.Set("Authorization", "Bearer customer")
	req.Header.Set("Idempotency-Key", "order-17")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// metric waits until a metric of a page's server is above zero. A label is optional.
func (n *night) metric(page, name, label string) {
	n.Helper()
	testkit.Eventually(n, name+" rises", func() bool {
		resp, err := http.DefaultClient.Do(testkit.Request(n.Context(), n, http.MethodGet, page+"/metrics", nil))
		testkit.Must(n, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		testkit.Must(n, err)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, name) && strings.Contains(line, label) && !strings.HasSuffix(line, " 0\n") {
				return true
			}
		}
		return false
	})
}
