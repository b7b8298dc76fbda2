package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// callConform runs dibs-prove conform in this process.
func callConform(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"conform"}, args...), &out, &errs, func(string) string { return "" })
	return code, out.String(), errs.String()
}

// newTarget serves a proxy to a free address, behind the middleware if there are options. It
// returns its URL and that address.
func newTarget(t *testing.T, o *idempotency.Options) (target, origin string) {
	t.Helper()
	origin = servertest.Addr(t)
	return guard(t, "http://"+origin, o), origin
}

// guard serves a proxy to the service, behind the middleware if there are options, and returns its URL.
func guard(t *testing.T, service string, o *idempotency.Options) string {
	t.Helper()
	to, err := url.Parse(service)
	testkit.Must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{DisableKeepAlives: true} // because each run has an origin of its own at this address
	var h http.Handler = proxy
	if o != nil {
		store, err := memstore.New(nil)
		testkit.Must(t, err)
		t.Cleanup(func() { store.Close() })
		client, err := dibs.New(store, nil)
		testkit.Must(t, err)
		t.Cleanup(func() { client.Close() })
		m, err := idempotency.New(client, o)
		testkit.Must(t, err)
		h = m.Wrap(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// TestConform: a target that conforms, with a line for each case.
func TestConform(t *testing.T) {
	t.Parallel()
	restarted := filepath.Join(t.TempDir(), "restarted")
	target, origin := newTarget(t, new(idempotency.Options))
	args := []string{"--target", target, "--origin", origin, "--profile", "dibs", "--only", "replay,running-race,key-escapes,restart", "--timeout", "4m"}
	code, stdout, stderr := callConform(t, append(args, "--json", "--restart", "touch "+restarted)...)
	if code != 0 || stderr != "" {
		t.Fatalf("%d %s%s", code, stdout, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	cases := conform.Cases()
	if len(lines) != len(cases)+1 {
		t.Fatalf("%d lines for %d cases", len(lines), len(cases))
	}
	for i, c := range cases {
		var got struct {
			ID, Level, Outcome, Why string
		}
		testkit.Must(t, json.Unmarshal([]byte(lines[i]), &got))
		if got.ID != c.ID || got.Level != string(c.Level) || got.Outcome == "failed" || (got.Outcome == "skipped") != (got.Why != "") {
			t.Errorf("the line of %s is %s", c.ID, lines[i])
		}
	}
	var sum struct {
		Target                               string
		Conforms                             bool
		Passed, Failed, Skipped, Failed_Must int
	}
	testkit.Must(t, json.Unmarshal([]byte(lines[len(cases)]), &sum))
	if !sum.Conforms || sum.Target != target || sum.Failed != 0 || sum.Passed != 4 || sum.Passed+sum.Skipped != len(cases) {
		t.Errorf("the summary is %s", lines[len(cases)])
	}
	if _, err := os.Stat(restarted); err != nil {
		t.Errorf("the command of --restart was not run: %v", err)
	}
}

// TestConformFails: a failed case that must pass exits with 1 and says what happened. A failed
// case that should pass exits with 0.
func TestConformFails(t *testing.T) {
	t.Parallel()
	target, origin := newTarget(t, nil)
	code, stdout, stderr := callConform(t, "--target", target, "--origin", origin, "--only", "replay,safe-get,restart", "--restart", "exit 3")
	if code != 1 || stderr != "" {
		t.Errorf("without a guard: %d %q", code, stderr)
	}
	for _, want := range []string{
		"FAIL  must       replay ", "\n      the origin ran 2 times; want once\n", "\npass  should     safe-get ",
		"\nFAIL  should     restart ", "\n      the target could not be restarted: exit 3: exit status 3\n",
		"1 passed, 2 failed (1 must, 1 should)", "\nfailed, and must pass: replay\n",
	} {
		if !strings.Contains("\n"+stdout, want) {
			t.Errorf("the report has no %q:\n%s", want, stdout)
		}
	}
	code, stdout, _ = callConform(t, "--target", target, "--origin", origin, "--only", "replay,safe-get,restart", "--level", "must,should", "--quiet")
	if code != 1 || !strings.HasPrefix(stdout, "FAIL  must       replay ") || strings.Contains(stdout, "\npass") || strings.Contains(stdout, "\nskip") ||
		!strings.HasSuffix(stdout, "\nfailed, and must pass: replay\n") {
		t.Errorf("with --quiet: %d\n%s", code, stdout)
	}
	code, stdout, _ = callConform(t, "--target", target, "--origin", origin, "--only", "replay,safe-get", "--level", "should", "--timeout", "4m")
	if code != 0 || !strings.Contains(stdout, "1 passed, 0 failed") || !strings.Contains(stdout, ": not asked for (--level)\n") || strings.Contains(stdout, "must pass") {
		t.Errorf("with --level: %d\n%s", code, stdout)
	}
	target, origin = newTarget(t, &idempotency.Options{Wait: 20 * time.Second})
	code, stdout, _ = callConform(t, "--target", target, "--origin", origin, "--only", "running-once,running-refused")
	if code != 0 || !strings.Contains(stdout, "FAIL  should     running-refused") || !strings.Contains(stdout, "1 passed, 1 failed (1 should)") {
		t.Errorf("with what should hold alone: %d\n%s", code, stdout)
	}
}

// TestConformService: the proxy makes a service that knows no keys what the profile asks for, as far as
// its answers show it. The service alone fails, and what they do not show is not passed.
func TestConformService(t *testing.T) {
	t.Parallel()
	var orders atomic.Int64
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); !strings.HasPrefix(string(body), `{"item":`) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id":%d}`, orders.Add(1))
	}))
	t.Cleanup(shop.Close)
	guarded := guard(t, shop.URL, &idempotency.Options{WriteProblem: idempotency.WriteACPError, RequireKey: true, KeyPer: idempotency.KeyPerPath, Fingerprint: idempotency.FingerprintOptions{CanonicalJSON: true}})
	args := func(target string, more ...string) []string {
		return append([]string{"--service", "--profile", "acp", "--target", target + "/orders", "--body", `{"item":"a book"}`, "--other-body", `{"item":"a pen"}`}, more...)
	}
	code, stdout, stderr := callConform(t, args(guarded, "--timeout", "4m")...)
	for _, want := range []string{
		"\npass  must       replay ", "\npass  must       acp-mismatch ",
		"\n----  must       running-once            Duplicates do not run while the first request runs: not judged: needs an origin behind the target",
		" 0 failed, ", " must), in ",
	} {
		if !strings.Contains("\n"+stdout, want) {
			t.Errorf("the report has no %q:\n%s", want, stdout)
		}
	}
	if code != 0 || stderr != "" {
		t.Errorf("behind the proxy: %d %q", code, stderr)
	}
	if code, stdout, _ = callConform(t, args(shop.URL, "--timeout", "1s", "--quiet")...); code != 1 || !strings.Contains(stdout, "\nfailed, and must pass: replay, ") || !strings.Contains(stdout, "acp-missing") {
		t.Errorf("without a guard: %d\n%s", code, stdout)
	}
	for says, c := range map[string]struct {
		code int
		args []string
	}{
		"origin: it cannot be used together with --service": {64, args(shop.URL, "--origin", "127.0.0.1:0")},
		"other-body is body":                      {64, args(shop.URL, "--other-body", `{"item":"a book"}`)},
		"was answered 422: \"\"; name the URL of": {69, args(shop.URL, "--body", `{"amount":1200}`)},
	} {
		if code, stdout, stderr := callConform(t, c.args...); code != c.code || stdout != "" || !strings.Contains(stderr, says) {
			t.Errorf("%d %q %q; want %d and %q", code, stdout, stderr, c.code, says)
		}
	}
}

// TestConformUnable: if nothing can be checked, the message says why and what to do.
func TestConformUnable(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }))
	t.Cleanup(elsewhere.Close)
	l := testkit.Listen(t)
	taken := l.Addr().String()
	t.Cleanup(func() { l.Close() })
	gone := servertest.Addr(t)
	const free = "127.0.0.1:0"
	for name, c := range map[string]struct {
		code int
		says string
		args []string
	}{
		"no target":       {64, "target: ", nil},
		"no URL":          {64, `target: "localhost:1" is not a URL`, []string{"--target", "localhost:1", "--origin", free}},
		"no profile":      {64, `profile: "best" is none of draft, dibs, stripe`, []string{"--target", elsewhere.URL, "--profile", "best", "--origin", free}},
		"no case":         {64, `skip: the profile draft has no case "all"`, []string{"--target", elsewhere.URL, "--skip", "all", "--origin", free}},
		"no level":        {64, `level: "most" is none of must, should, practice`, []string{"--target", elsewhere.URL, "--level", "most", "--origin", free}},
		"quiet JSON":      {64, "quiet: ", []string{"--target", elsewhere.URL, "--quiet", "--json"}},
		"no header":       {64, `header: `, []string{"--target", elsewhere.URL, "--header", "x"}},
		"no status":       {64, "conflict-status is 200", []string{"--target", elsewhere.URL, "--conflict-status", "200", "--origin", free}},
		"not the target":  {69, "does not lead to the origin", []string{"--target", elsewhere.URL, "--origin", free}},
		"no target there": {69, "the target cannot be reached", []string{"--target", "http://" + gone, "--origin", free}},
		"port taken":      {69, "give it another address", []string{"--target", elsewhere.URL, "--origin", taken}},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := callConform(t, c.args...)
			if code != c.code || stdout != "" || !strings.HasPrefix(stderr, "dibs-prove conform: ") || !strings.Contains(stderr, c.says) {
				t.Errorf("%d %q %q; want %d and %q", code, stdout, stderr, c.code, c.says)
			}
		})
	}
}

// TestConformList: the list is the published page.
func TestConformList(t *testing.T) {
	page := testkit.ReadFile(t, "../../docs/reference/conformance.md")
	code, stdout, stderr := callConform(t, "--list")
	if code != 0 || stderr != "" || !bytes.Equal(page, []byte(stdout)) {
		t.Errorf("%d %q, and %d bytes that are not the page", code, stderr, len(stdout))
	}
}
