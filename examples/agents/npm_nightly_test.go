//go:build nightly

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// node returns a command of Node in a folder that has the packages of testdata. Node is one of them,
// because the conformance suite needs a newer one than Debian has.
var node = sync.OnceValues(func() (func(args ...string) *exec.Cmd, error) {
	folder := filepath.Join(dir, "npm")
	if err := os.CopyFS(folder, os.DirFS("testdata")); err != nil {
		return nil, err
	}
	install := exec.Command("npm", "install", "--no-audit", "--no-fund")
	install.Dir = folder
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("npm: %w\n%s", err, out)
	}
	return func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(folder, "node_modules/node/bin/node"), args...)
		cmd.Dir, cmd.Stderr = folder, os.Stderr
		return cmd
	}, nil
})

// started starts a command that ends with the test, and returns its stdin and stdout.
func started(t *testing.T, cmd *exec.Cmd) (io.Writer, *bufio.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return in, bufio.NewReader(out)
}

// TestCutsOfJavaScript is TestCuts with the SDK for JavaScript on both sides, and with its next version,
// which speaks the revision 2026-07-28, in front of the SDK for Go.
func TestCutsOfJavaScript(t *testing.T) {
	t.Parallel()
	node, err := node()
	testkit.Must(t, err)
	_, port := started(t, node("server.mjs"))
	line, err := port.ReadString('\n')
	testkit.Must(t, err)
	origin := "http://127.0.0.1:" + strings.TrimSpace(line)
	t.Run("1", func(t *testing.T) {
		cutJavaScript(t, node, "1", proxiedOrigin(t, origin), func() string { return get(t, origin+"/charges") })
	})
	t.Run("2", func(t *testing.T) {
		s := new(shop)
		cutJavaScript(t, node, "2", proxied(t, s.handler()), func() string { return fmt.Sprint(s.charges()) })
	})
}

// cutJavaScript cuts the connection of a client of the version at every byte of its call.
func cutJavaScript(t *testing.T, node func(args ...string) *exec.Cmd, version, url string, charged func() string) {
	t.Helper()
	relay := newRelay(t, strings.TrimPrefix(url, "http://"))
	keys, heard := started(t, node("client.mjs", version, "http://"+relay.addr+"/mcp", url+"/mcp"))
	charges, cuts := 0, 0
	for _, answer := range []bool{false, true} {
		for at := int64(0); ; at++ {
			c := &cut{after: at, answer: answer}
			relay.next.Store(c)
			_, err := fmt.Fprintln(keys, testkit.Own())
			testkit.Must(t, err)
			line, err := heard.ReadString('\n')
			testkit.Must(t, err)
			charges++
			if got := charged(); got != fmt.Sprint(charges) || line != fmt.Sprintf("[\"charge %[1]d\",\"charge %[1]d\"]\n", charges) {
				t.Fatalf("cut at byte %d, of the answer: %v: %s charges for %d keys; the callers heard %s", at, answer, got, charges, line)
			}
			if !c.hit.Load() {
				break
			}
			cuts++
		}
	}
	if cuts < 600 {
		t.Errorf("there were %d cuts, which is less than a call and its answer have", cuts)
	}
	t.Logf("%d cuts", cuts)
}

// get returns the body of an answer.
func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.DefaultClient.Do(testkit.Request(t.Context(), t, http.MethodGet, url, nil))
	testkit.Must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	return string(body)
}

// A relay passes requests on, each over a connection of its own. It cuts the next call of a tool.
type relay struct {
	addr, to string
	next     atomic.Pointer[cut]
}

func newRelay(t *testing.T, to string) *relay {
	r := &relay{to: to}
	r.addr = testkit.Serve(t, func(_ int, c *net.TCPConn) { r.serve(c) })
	return r
}

// serve passes one request on.
func (r *relay) serve(client *net.TCPConn) {
	defer client.Close()
	request, err := http.ReadRequest(bufio.NewReader(client))
	if err != nil {
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	request.Body, request.Close, request.Host = io.NopCloser(bytes.NewReader(body)), true, r.to
	conn, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer conn.Close()
	if bytes.Contains(body, []byte(`"method":"tools/call"`)) {
		if c := r.next.Swap(nil); c != nil {
			conn = &cutConn{conn, c, c.after}
		}
	}
	var text bytes.Buffer
	_ = request.Write(&text) // a Buffer accepts everything
	if _, err := conn.Write(text.Bytes()); err == nil {
		_, _ = io.Copy(struct{ io.Writer }{client}, conn)
	}
}

// TestConformance runs the conformance suite of the protocol against the SDK's server for it, alone and
// behind the proxy, which guards every call. Both pass the same.
func TestConformance(t *testing.T) {
	t.Parallel()
	node, err := node()
	testkit.Must(t, err)
	server := filepath.Join(dir, "everything")
	build := exec.Command("go", "build", "-o", server, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	build.Stderr = os.Stderr
	testkit.Must(t, build.Run())
	for _, test := range []struct{ revision, stateless, key string }{
		{"2025-11-25", "false", "header:Mcp-Session-Id,json:/id"},
		{"2026-07-28", "true", "json:/id"},
	} {
		t.Run(test.revision, func(t *testing.T) {
			addr := servertest.Addr(t)
			started(t, exec.Command(server, "-http="+addr, "-stateless="+test.stateless))
			testkit.Eventually(t, "the server listens", func() bool {
				c, err := net.Dial("tcp", addr)
				if err == nil {
					_ = c.Close()
				}
				return err == nil
			})
			passed := func(url string) []string {
				t.Helper()
				suite := node("node_modules/@modelcontextprotocol/conformance/dist/index.js", "server", "--url", url, "--spec-version", test.revision)
				out, err := suite.Output()
				testkit.Must(t, err)
				return regexp.MustCompile("(?m)^(✓|✗|Total).*$").FindAllString(string(out), -1)
			}
			alone := passed("http://" + addr)
			behind := passed(proxiedOrigin(t, "http://"+addr, "--key-per=request", "--key="+test.key))
			if len(alone) < 15 || !slices.Equal(alone, behind) {
				t.Errorf("alone\n%s\nbehind the proxy\n%s", strings.Join(alone, "\n"), strings.Join(behind, "\n"))
			}
			t.Log(behind[len(behind)-1])
		})
	}
}

// The revisions of the protocol, with sessions and without, with streams that can be resumed, and with
// answers that are no streams.
func init() {
	for _, revision := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		ways = append(ways,
			way{revision + " in sessions", revision, mcp.StreamableHTTPOptions{}},
			way{revision + " in JSON", revision, mcp.StreamableHTTPOptions{JSONResponse: true}},
			way{revision + " resumed", revision, mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}},
		)
	}
	ways = append(ways, way{"2026-07-28 in JSON", "2026-07-28", mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}})
}
