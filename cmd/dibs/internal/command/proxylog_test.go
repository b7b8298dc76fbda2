//go:build unix

package command_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestProxyLog: what the process of the proxy writes to stderr is JSON lines. That holds for
// lines of net/http's transport too, which quote an answer that the log must not have.
func TestProxyLog(t *testing.T) {
	const stray = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"
	l := testkit.Listen(t)
	answered := make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		<-answered
		io.WriteString(c, stray)
		io.Copy(io.Discard, c)
	}()
	b := newBench(t)
	b.env = []string{"DIBS_PROXY_LOG_LEVEL=debug"}
	p := b.start(t, "proxy", "--listen", "127.0.0.1:0", "--upstream", "http://"+l.Addr().String(), "--log-format", "json")
	testkit.Eventually(t, "the proxy listens", func() bool { return strings.Contains(p.stdout.String(), "\n") })
	var listening struct{ Msg, URL, Upstream string }
	testkit.Must(t, json.Unmarshal([]byte(p.stdout.String()), &listening))
	if listening.Msg != "dibs proxy: listening on "+listening.URL || listening.Upstream != "http://"+l.Addr().String() {
		t.Errorf("it says %s", p.stdout.String())
	}
	response, err := http.Get(listening.URL)
	testkit.Must(t, err)
	testkit.Must(t, response.Body.Close())
	close(answered)
	testkit.Eventually(t, "the transport logs", func() bool { return strings.Contains(p.stderr.String(), "Unsolicited response") })
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 0 {
		t.Errorf("the proxy ends with %d", code)
	}
	counts := map[string]int{}
	for line := range strings.Lines(p.stderr.String()) {
		var fields struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		counts[fields.Level+" "+fields.Msg]++
	}
	if counts["INFO the server drains: it ends when the requests under way are answered"] != 1 || counts["INFO the server has ended"] != 1 ||
		counts["INFO request"] != 1 || counts["WARN Unsolicited response received on idle HTTP channel"] != 1 || strings.Contains(p.stderr.String(), "secret") {
		t.Errorf("the log is %s", p.stderr.String())
	}
}

// TestProxyStartFails: a proxy that cannot start says so in text, whatever the format of its log.
func TestProxyStartFails(t *testing.T) {
	l := testkit.Listen(t)
	code, _, stderr := newBench(t).run(t, "proxy", "--listen", l.Addr().String(), "--upstream", "http://x", "--log-format", "json")
	var last string
	for line := range strings.Lines(stderr) {
		last = line
	}
	if code != 1 || !strings.HasPrefix(last, "dibs proxy: listen: ") {
		t.Errorf("%d %q; want 1 and a text", code, stderr)
	}
}
