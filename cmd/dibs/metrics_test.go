//go:build unix

package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// scrape reads what the admin address says.
func (p *process) scrape(t *testing.T, path string) string {
	t.Helper()
	res, err := http.Get(p.admin + path)
	testkit.Must(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v: %s", path, res.StatusCode, err, text)
	}
	return string(text)
}

// TestMetricsAddUp: the outcomes that the proxy counts are those of the requests that were sent, and no
// label has a key or a credential.
func TestMetricsAddUp(t *testing.T) {
	origin := newCounter(t, nil)
	p := startProxy(t, origin.URL, sqliteStore(t), "--require-key")
	send := func(method, path, key, body string) {
		req := testkit.Request(context.Background(), t, method, p.url+path, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer secret")
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		res, err := http.DefaultClient.Do(req)
		testkit.Must(t, err)
		res.Body.Close()
	}
	for range 3 {
		send("POST", "/", "secret-1", "a")
	}
	send("POST", "/", "secret-1", "b")
	send("POST", "/", "", "b")
	send("POST", "/", "\"", "b")
	send("GET", "/", "", "")
	send("OPTIONS", "/", "", "")

	text := p.scrape(t, "/metrics")
	if strings.Contains(text, "secret") {
		t.Errorf("a key or a credential is in the metrics:\n%s", text)
	}
	has := func(line string) {
		t.Helper()
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("there is no line %s:\n%s", line, text)
		}
	}
	for _, metric := range []string{"dibs_waiters", "dibs_oldest_wait_seconds", "dibs_unknown"} { // the store has no live key
		has(metric + "{dibs_namespace=\"\"} 0\n")
	}
	const requests = `dibs_request_duration_seconds_count{dibs_outcome="`
	for _, outcome := range []string{`ran"} 1`, `replayed"} 2`, `mismatch"} 1`, `invalid"} 2`, `unguarded"} 2`} {
		has(requests + outcome + "\n")
	}
	if n := strings.Count(text, requests); n != 5 {
		t.Errorf("there are %d outcomes, want 5:\n%s", n, text)
	}
	has("process_cpu_seconds_total ")
	if version := p.scrape(t, "/version"); !strings.HasPrefix(version, "dibs ") {
		t.Errorf("/version says %q", version)
	}
}
