//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestAFrozenServer: a claim goes to a server that is frozen, and its caller gives up. The server
// wakes and does not carry it out: no lease and no place is left.
func TestAFrozenServer(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "dibs") // short, because the path of a socket must be
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	frozen := serveAt(t, "sqlite:"+dir+"/dibs.db", dir+"/a", "--access-log")
	claim := func(c net.Conn, mode, key string) {
		t.Helper()
		var elements []string
		for i := range map[string]int{"several reserve": 2}[mode] + 1 {
			elements = append(elements, fmt.Sprintf(`{"key":"%s %d","token":"%032x","mode":"%s","place_ttl_ms":604800000}`, key, i, 1, strings.TrimPrefix(mode, "several ")))
		}
		body := `{"claims":[` + strings.Join(elements, ",") + `]`
		if mode == "queue" {
			body += `,"wait_ms":60000`
		}
		body += "}"
		_, err := fmt.Fprintf(c, "POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		testkit.Must(t, err)
	}
	var calls []func()
	for _, mode := range []string{"try", "queue", "reserve", "several reserve"} {
		for _, kept := range []bool{false, true} {
			dial := func() net.Conn {
				c, err := net.Dial("unix", dir+"/a")
				testkit.Must(t, err)
				return c
			}
			key := fmt.Sprintf("%s %v", mode, kept)
			var c net.Conn
			if kept {
				c = dial()
				claim(c, "look", key)
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				testkit.Must(t, err)
				_, err = io.Copy(io.Discard, resp.Body) // otherwise the system drops the next request, too
				testkit.Must(t, err)
				resp.Body.Close()
			}
			calls = append(calls, func() {
				if c == nil {
					c = dial()
				}
				claim(c, mode, key)
				c.Close()
			})
		}
	}
	said := func() int { return strings.Count(frozen.stdout.String()+frozen.stderr.String(), "/v1/claim") }
	before := len(calls) / 2
	testkit.Eventually(t, "the server has handled the first calls", func() bool { return said() == before })
	servertest.Freeze(t, frozen.Process) // a signal alone stops it some time later
	for _, call := range calls {
		call()
	}
	frozen.signal(t, syscall.SIGCONT)
	testkit.Eventually(t, "the frozen server has handled the calls", func() bool { return said() == before+len(calls) })
	if code, out, said := run(t, "ls", "--json", "--store", "sqlite:"+dir+"/dibs.db"); code != 0 || out != "" {
		t.Errorf("exit code %d, left is %s%s", code, out, said)
	}
}
