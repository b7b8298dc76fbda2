package command_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// screen is what a program has written to a terminal.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

// follow reads what is written to the terminal, until nothing has it open.
func (s *screen) follow(keyboard *os.File) {
	buf := make([]byte, 1<<12)
	for {
		n, err := keyboard.Read(buf)
		s.mu.Lock()
		s.text.Write(buf[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestLogKeys: on a terminal the log shows keys, escaped, if the operator wants it; otherwise their
// digests.
func TestLogKeys(t *testing.T) {
	t.Parallel()
	origin := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(origin.Close)
	for name, c := range map[string]struct {
		args       []string
		path, body string
		shown      string
	}{
		"proxy": {
			[]string{"proxy", "--listen", "127.0.0.1:0", "--upstream", origin.URL, "--key", "json:id", "--scope", "none"},
			"/orders", `{"id":"order \"17\""}`, `:order \"17\""`, // a key with control characters is refused
		},
		"serve": {[]string{"serve", "--listen", "127.0.0.1:0"}, "/v1/keys/release", `{"key":"order\u001b[31m\u202e17"}`, `"order\x1b[31m\u202e17"`},
	} {
		for _, keys := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				keyboard, terminal := openTerminal(t)
				args := c.args
				if keys {
					args = append(args[:len(args):len(args)], "--log-keys")
				}
				p := newBench(t).command(args...)
				p.Env = append(p.Environ(), "TERM=xterm")
				p.Stderr = terminal
				p.begin(t)
				testkit.Must(t, terminal.Close())
				var seen screen
				go seen.follow(keyboard)
				testkit.Eventually(t, "it listens", func() bool { return strings.Contains(p.stdout.String(), "\n") })
				_, url, _ := strings.Cut(p.stdout.String(), "listening on ")
				url, _, _ = strings.Cut(url, ",")
				response, err := http.Post(url+c.path, "application/json", strings.NewReader(c.body))
				testkit.Must(t, err)
				testkit.Must(t, response.Body.Close())
				if response.StatusCode != 200 {
					t.Errorf("it answered %s", response.Status)
				}
				testkit.Eventually(t, "the line of the key", func() bool { return strings.Contains(seen.String(), " key=") })
				p.signal(t, syscall.SIGTERM)
				p.code(t)
				if text := seen.String(); strings.Contains(text, c.shown) != keys || strings.ContainsAny(text, "\x1b\u202e") {
					t.Errorf("the terminal shows %q", text)
				}
			})
		}
	}
}
