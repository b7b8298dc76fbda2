//go:build unix

package main

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// series reads metrics as Prometheus does: values by name and labels.
func series(t *testing.T, text string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all[line[:i]] = value
	}
	return all
}

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

// The outcomes that the proxy counts add up to the requests that were sent, and no label
// has a key or a credential.
func TestMetricsAddUp(t *testing.T) {
	origin := newCounter(t, nil)
	p := startProxy(t, origin.URL, sqliteStore(t), "--require-key")
	sent := 0.0
	send := func(method, path, key, body string) {
		sent++
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
	for _, metric := range []string{"dibs_waiters", "dibs_oldest_wait_seconds", "dibs_unknown"} {
		if value, ok := series(t, text)[metric+`{dibs_namespace=""}`]; !ok || value != 0 {
			t.Errorf("the store has no live key, and %s is %v, %v", metric, value, ok)
		}
	}
	total, got := 0.0, map[string]float64{}
	for name, value := range series(t, text) {
		if outcome, ok := strings.CutPrefix(name, `dibs_request_duration_seconds_count{dibs_outcome="`); ok {
			total += value
			got[strings.TrimSuffix(outcome, `"}`)] = value
		}
	}
	want := map[string]float64{"ran": 1, "replayed": 2, "mismatch": 1, "invalid": 2, "unguarded": 2}
	if total != sent || !maps.Equal(got, want) {
		t.Errorf("%v requests were sent; counted are %v: %v, want %v", sent, total, got, want)
	}
	if _, ok := series(t, text)["process_cpu_seconds_total"]; !ok {
		t.Error("the metrics do not say what the process takes of the processor")
	}
	if version := p.scrape(t, "/version"); !strings.HasPrefix(version, "dibs ") {
		t.Errorf("/version says %q", version)
	}
}
