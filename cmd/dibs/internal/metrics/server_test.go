package metrics

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/serve"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// served is a dibs serve with its metrics.
type served struct {
	*httptest.Server
	t *testing.T
}

// serveMetrics starts one, with a file of credentials unless that is "".
func serveMetrics(t *testing.T, tokens string) *served {
	t.Helper()
	under, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { under.Close() })
	m, err := NewServer()
	testkit.Must(t, err)
	testkit.Must(t, m.Live(survey.New(under, nil), nil))
	s, err := serve.New(serve.Config{
		Tokens:  tokens,
		MaxBody: 1 << 20, MaxBodyMemory: 1 << 24, MaxCalls: 10, MaxWaiters: 1, StoreTimeout: time.Minute,
	}, under, serve.Hooks{Version: "test", Metrics: m.Handler, StoreCall: m.StoreCall, Call: m.Call, Waiting: m.Waiting, Log: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	over := &served{httptest.NewServer(s.Handler()), t}
	t.Cleanup(over.Close)
	return over
}

// do makes a call, maybe with a token, and returns its answer.
func (s *served) do(method, path, body string, token ...string) string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	testkit.Must(s.t, err)
	r.Header.Set("Content-Type", "application/json")
	if len(token) > 0 {
		r.Header.Set("Authorization", "Bearer "+token[0])
	}
	resp, err := s.Client().Do(r)
	testkit.Must(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(s.t, err)
	return string(text)
}

// claims returns the body of a claim of "k".
func claims(token int, rest string) string {
	return fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x","mode":"queue"}]%s}`, token, rest)
}

// TestServerMetrics: each call is counted once by its route and status, each element by its
// outcome, and claims that wait are counted while they wait.
func TestServerMetrics(t *testing.T) {
	s := serveMetrics(t, "")
	has := func(line string) bool { return strings.Contains(s.do("GET", "/metrics", ""), "\n"+line+"\n") }
	s.do("POST", "/v1/claim", claims(1, ""))
	s.do("POST", "/v1/claim", claims(1, ""))
	s.do("POST", "/v1/renew", `{"renewals":[{"key":"k","token":"`+strings.Repeat("9", 32)+`"}]}`)
	s.do("POST", "/v1/claim", `{"nonsense":1}`)
	s.do("PUT", "/v1/claim", "")
	s.do("BREW", "/nothing", "")
	waited := make(chan string)
	go func() { waited <- s.do("POST", "/v1/claim", claims(2, `,"wait_ms":60000`)) }()
	testkit.Eventually(t, "one claim waits", func() bool { return has("dibs_serve_waiting 1") })
	s.do("POST", "/v1/claim", claims(3, `,"wait_ms":60000`))
	s.do("POST", "/v1/settle", fmt.Sprintf(`{"settlements":[{"key":"k","token":"%032x"}]}`, 1))
	if text := testkit.Await(t, "the waiter's answer", waited); !strings.Contains(text, "granted") {
		t.Errorf("the waiter is answered %s", text)
	}
	// A call is counted after its answer was sent.
	for _, line := range []string{
		"dibs_serve_waiting 0",
		`dibs_serve_elements_total{dibs_call="claim",dibs_outcome="granted"} 3`,
		`dibs_serve_elements_total{dibs_call="renew",dibs_outcome="lost"} 1`,
		`dibs_serve_elements_total{dibs_call="settle",dibs_outcome="done"} 1`,
		`http_server_request_duration_seconds_count{dibs_waited="false",http_request_method="POST",http_response_status_code="200",http_route="/v1/claim"} 2`,
		`http_server_request_duration_seconds_count{dibs_waited="true",http_request_method="POST",http_response_status_code="200",http_route="/v1/claim"} 1`,
		`http_server_request_duration_seconds_count{dibs_waited="false",error_type="invalid",http_request_method="POST",http_response_status_code="400",http_route="/v1/claim"} 1`,
		`http_server_request_duration_seconds_count{dibs_waited="false",error_type="overloaded",http_request_method="POST",http_response_status_code="429",http_route="/v1/claim"} 1`,
		`http_server_request_duration_seconds_count{dibs_waited="false",error_type="method-refused",http_request_method="PUT",http_response_status_code="405",http_route="/v1/claim"} 1`,
		`http_server_request_duration_seconds_count{dibs_waited="false",error_type="not-found",http_request_method="_OTHER",http_response_status_code="404",http_route=""} 1`,
	} {
		testkit.Eventually(t, "there is a line "+line, func() bool { return has(line) })
	}
}

// TestMetricsOfANamespace: a credential of a namespace reads its metrics and no others. One of every
// namespace reads all.
func TestMetricsOfANamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	var lines []byte
	for _, name := range []string{"shop", "bank", "nobody", "*"} {
		lines = fmt.Appendf(lines, "%s %x %[1]s use,look\n", name, sha256.Sum256([]byte(name)))
	}
	testkit.Must(t, os.WriteFile(file, lines, 0o600))
	s := serveMetrics(t, file)
	for _, name := range []string{"shop", "bank"} {
		s.do("POST", "/v1/claim", claims(1, ""), name)
		s.do("POST", "/v1/claim", claims(2, ""), name) // it waits
	}
	const all = "other,bank,shop"
	for name, want := range map[string]string{"shop": "shop", "bank": "bank", "nobody": "", "*": all} {
		text := s.do("GET", "/metrics", "", name)
		var of []string
		for line := range strings.Lines(text) {
			if line[0] == '#' {
				continue
			}
			namespace := "other"
			if m := regexp.MustCompile(`dibs_namespace="([^"]*)"`).FindStringSubmatch(line); m != nil {
				namespace = m[1]
			}
			if !slices.Contains(of, namespace) && namespace != "" {
				of = append(of, namespace)
			}
		}
		slices.Sort(of)
		wanted := strings.FieldsFunc(want, func(c rune) bool { return c == ',' })
		slices.Sort(wanted)
		if !slices.Equal(of, wanted) {
			t.Errorf("%s reads metrics of %q; want %q:\n%s", name, of, wanted, text)
		}
		if line := `dibs_waiters{dibs_namespace="` + name + `"} 1`; len(wanted) == 1 && !strings.Contains(text, line) {
			t.Errorf("%s does not read %s:\n%s", name, line, text)
		}
	}
}

// TestAClientThatGoesAwayIsNoError: its call has no status, and the type canceled.
func TestAClientThatGoesAwayIsNoError(t *testing.T) {
	s := serveMetrics(t, "")
	s.do("POST", "/v1/claim", claims(1, ""))
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/v1/claim", strings.NewReader(claims(2, `,"wait_ms":60000`)))
		if err != nil {
			return
		}
		r.Header.Set("Content-Type", "application/json")
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	testkit.Eventually(t, "one claim waits", func() bool { return strings.Contains(s.do("GET", "/metrics", ""), "\ndibs_serve_waiting 1\n") })
	s.CloseClientConnections()
	const line = `http_server_request_duration_seconds_count{dibs_waited="true",error_type="canceled",http_request_method="POST",http_route="/v1/claim"} 1`
	testkit.Eventually(t, "it is counted as canceled", func() bool { return strings.Contains(s.do("GET", "/metrics", ""), "\n"+line+"\n") })
}

// TestServerPage: docs/reference/serve.md lists the metrics that there are, and no others.
func TestServerPage(t *testing.T) {
	s := serveMetrics(t, "")
	s.do("POST", "/v1/claim", claims(1, ""))
	var there, listed []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(s.do("GET", "/metrics", "")+s.do("GET", "/metrics", ""), -1) {
		there = append(there, m[1])
	}
	there = slices.DeleteFunc(there, func(name string) bool { return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") })
	page := testkit.ReadFile(t, "../../../../docs/reference/serve.md")
	_, section, _ := strings.Cut(string(page), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)`").FindAllStringSubmatch(section, -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(there)
	slices.Sort(listed)
	if there = slices.Compact(there); !slices.Equal(there, listed) {
		t.Errorf("there are %q, and the page lists %q", there, listed)
	}
}

// failing is a store whose listings fail.
type failing struct{ *memstore.Store }

func (failing) List(context.Context, store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) { yield(store.Entry{}, errors.New("refused")) }
}

// TestLiveKeys: the page has how many claims wait and how many outcomes are unknown, by the
// namespace and nothing else. A store that fails takes away these metrics and no others.
func TestLiveKeys(t *testing.T) {
	under, err := memstore.New(nil)
	testkit.Must(t, err)
	defer under.Close()
	claims := make([]store.Claim, 4)
	for i, name := range []string{"k", "k", "k", "once"} {
		claims[i] = store.Claim{Key: store.Key{Namespace: "shop", Name: name}, Token: store.Token{byte(i + 1)}, Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
	}
	claims[3].TTL, claims[3].AtMostOnce = time.Millisecond, true
	answers := make([]store.Answer, 4)
	testkit.Must(t, under.Claim(t.Context(), claims, answers))
	shop := "shop"
	served := func(in store.Inspector) string {
		m, err := New()
		testkit.Must(t, err)
		testkit.Must(t, m.Live(survey.New(in, nil), &shop))
		w := httptest.NewRecorder()
		m.Handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != 200 || !strings.Contains(w.Body.String(), "\ndibs_request_unstored_total 0\n") {
			t.Errorf("the page is %d %s", w.Code, w.Body)
		}
		return w.Body.String()
	}
	testkit.Eventually(t, "the outcome is unknown", func() bool {
		return strings.Contains(served(under), "\ndibs_unknown{dibs_namespace=\"shop\"} 1\n")
	})
	for _, line := range []string{`dibs_waiters{dibs_namespace="shop"} 2`, `dibs_oldest_wait_seconds{dibs_namespace="shop"} 0`} {
		if page := served(under); !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("there is no line %s:\n%s", line, page)
		}
	}
	if page := served(failing{under}); strings.Contains(page, "dibs_waiters") {
		t.Errorf("a store that fails has metrics of its keys:\n%s", page)
	}
}

// TestUnknownEndsWithItsCause: the metric of the alert DibsOutcomeUnknown is zero as soon as an operator
// has settled the key, and the alert asks nothing that outlasts it.
func TestUnknownEndsWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under, err := memstore.New(nil)
		testkit.Must(t, err)
		defer under.Close()
		m, err := New()
		testkit.Must(t, err)
		testkit.Must(t, m.Live(survey.New(under, nil), nil))
		served := func() string {
			w := httptest.NewRecorder()
			m.Handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			return w.Body.String()
		}
		claim := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Second, Permits: 1, Weight: 1, AtMostOnce: true}
		testkit.Must(t, under.Claim(t.Context(), []store.Claim{claim}, make([]store.Answer, 1)))
		time.Sleep(time.Minute)
		m.Request(t.Context(), idempotency.Event{Kind: idempotency.EventUnknown}) // a caller that was refused meanwhile
		if page := served(); !strings.Contains(page, "\ndibs_unknown{dibs_namespace=\"\"} 1\n") {
			t.Errorf("no outcome is unknown:\n%s", page)
		}
		if done, err := under.Resolve(t.Context(), claim.Key, claim.Token.ID(), nil, time.Hour); !done || err != nil {
			t.Fatalf("settling: %v, %v", done, err)
		}
		time.Sleep(survey.MetricsAge)
		if page := served(); strings.Contains(page, "dibs_unknown{dibs_namespace=\"\"} 1") {
			t.Errorf("the outcome is settled, and unknown:\n%s", page)
		}
	})
	_, rule, _ := strings.Cut(string(testkit.ReadFile(t, "../../../../deploy/alerts.yaml")), "- alert: DibsOutcomeUnknown\n")
	rule, _, _ = strings.Cut(rule, "- alert: ")
	if expr := regexp.MustCompile(`(?m)^ *expr: (.*)$`).FindStringSubmatch(rule); expr == nil || expr[1] != "max by (job, dibs_namespace) (dibs_unknown) > 0" {
		t.Errorf("the alert asks %q", expr)
	}
}
