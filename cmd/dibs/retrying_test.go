//go:build nightly

package main

import (
	"errors"
	"os/exec"
	"testing"
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
