//go:build nightly

package main

import (
	"errors"
	"net"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// curl sends a POST by curl, which retries on its own, and returns what it
// prints: the body of the answer.
func curl(t *testing.T, url, key, body string) string {
	t.Helper()
	return outputOf(t, "curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "60",
		"--retry", "8", "--retry-all-errors", "--retry-delay", "1",
		"--header", "Idempotency-Key: "+key, "--data", body, url)
}

// urllib3Script retries a POST on broken connections and on answers that say when.
const urllib3Script = `
import sys, urllib3
from urllib3.util.retry import Retry
url, key, body = sys.argv[1:]
retry = Retry(total=8, backoff_factor=0.1, allowed_methods=None, status_forcelist=[409, 502, 503])
http = urllib3.PoolManager(retries=retry, timeout=60.0)
answer = http.request("POST", url, body=body.encode(), headers={"Idempotency-Key": key})
sys.stdout.write(answer.data.decode())
`

// urllib3 sends a POST by Python's urllib3, which retries on its own, and
// returns the body of the answer.
func urllib3(t *testing.T, url, key, body string) string {
	t.Helper()
	return outputOf(t, python, "-c", urllib3Script, url, key, body)
}

func outputOf(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		message := ""
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			message = string(e.Stderr)
		}
		t.Fatalf("%s: %v: %s%s", name, err, out, message)
	}
	return string(out)
}

// lossy is a network that loses answers: the server gets each request, but the
// connection breaks before the answer arrives.
type lossy struct {
	// URL to send requests to.
	URL string
	// Lost counts the answers that were lost.
	Lost atomic.Int64

	target string
	lose   atomic.Int64
}

// newLossy starts a lossy network before the server at addr (HOST:PORT).
func newLossy(t *testing.T, addr string) *lossy {
	t.Helper()
	n := &lossy{target: addr}
	n.URL = "http://" + testkit.Serve(t, func(_ int, c *net.TCPConn) { n.carry(c) })
	return n
}

// Lose makes the next n answers get lost.
func (l *lossy) Lose(n int) { l.lose.Store(int64(n)) }

// carry carries the bytes of one connection.
func (l *lossy) carry(client *net.TCPConn) {
	defer client.Close()
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := client.Read(buf)
			if n > 0 {
				if _, err := server.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				server.Close()
				return
			}
		}
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		if n > 0 && l.lose.Add(-1) >= 0 {
			l.Lost.Add(1)
			_ = client.SetLinger(0)
			return
		}
		if n > 0 {
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
