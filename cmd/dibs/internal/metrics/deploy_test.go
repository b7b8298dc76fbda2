package metrics

import (
	"context"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// Every metric that the dashboard, the alerts and the page for bad nights name is there,
// with the labels that they name.
func TestNamedMetricsExist(t *testing.T) {
	m, err := New()
	testkit.Must(t, err)
	ctx := context.Background()
	for _, kind := range []dibs.EventKind{dibs.EventAcquired, dibs.EventRefused, dibs.EventReleased, dibs.EventLost} {
		for _, queued := range []bool{false, true} {
			m.Lease(ctx, dibs.Event{Kind: kind, Queued: queued, Err: dibs.ErrHeld})
		}
	}
	for _, verb := range []string{"claim", "renew", "settle"} {
		m.StoreCall(dibs.StoreCall{Verb: verb, Size: 1, Undone: 1})
		m.StoreCall(dibs.StoreCall{Verb: verb, Err: context.DeadlineExceeded})
	}
	m.Request(ctx, idempotency.Event{Kind: idempotency.EventRan, StoreFailed: true})
	for _, o := range []idempotency.EventKind{idempotency.EventBypassed, idempotency.EventUnknown, idempotency.EventConflict} {
		m.Request(ctx, idempotency.Event{Kind: o})
	}
	m.Job(ctx, jobs.Event{Kind: jobs.EventAcquired, Waited: time.Second})
	m.Job(ctx, jobs.Event{Kind: jobs.EventSucceeded, Ran: time.Second})
	w := httptest.NewRecorder()
	m.Handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	served := w.Body.String()
	s := serveMetrics(t, "")
	s.do("POST", "/v1/claim", claims(1, ""))
	s.do("POST", "/v1/claim", claims(2, `,"wait_ms":1`))
	busy := serveMetrics(t, "")
	busy.do("POST", "/v1/claim", claims(1, ""))
	busy.do("POST", "/v1/claim", `{"claims":[`+strings.Repeat(`{"key":"k","mode":"look"},`, 2)+`{"key":"k","mode":"look"}],"wait_ms":1}`) // of which one may wait
	served += s.do("GET", "/metrics", "") + busy.do("GET", "/metrics", "")

	named := regexp.MustCompile(`\b(?:dibs|http_server)_[a-z_]+[a-z]`)
	matcher := regexp.MustCompile(`\b(dibs_[a-z]+|error_type)="([a-z]+)"`)
	const top = "../../../.."
	for _, name := range []string{"deploy/dashboard.json", "deploy/alerts.yaml", "docs/operate/incidents.md", "docs/operate/before-production.md", "docs/operate/page.md"} {
		text := testkit.ReadFile(t, filepath.Join(top, name))
		plain := strings.ReplaceAll(string(text), `\"`, `"`)
		for _, metric := range named.FindAllString(plain, -1) {
			// Those of dibs run are in TestMetricsFile.
			if !strings.HasPrefix(metric, "dibs_run_") && !strings.Contains(served, metric) {
				t.Errorf("%s names %s, which there is not", name, metric)
			}
		}
		for _, label := range matcher.FindAllString(plain, -1) {
			if !strings.Contains(served, label) {
				t.Errorf("%s looks for %s, which there is not", name, label)
			}
		}
	}
}

// An alert of something that has not happened yet in this process finds its first time:
// the series is there at zero, or the alert looks for series that begin.
func TestAlertsFindTheFirstTime(t *testing.T) {
	m, err := New()
	testkit.Must(t, err)
	w := httptest.NewRecorder()
	m.Handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text := testkit.ReadFile(t, "../../../../deploy/alerts.yaml")
	rises := regexp.MustCompile(`increase\(((dibs_[a-z_]+)[^\[]*)`).FindAllSubmatch(text, -1)
	if len(rises) == 0 {
		t.Error("no alert is of what has risen")
	}
	for _, rise := range rises {
		series, metric := string(rise[1]), string(rise[2])
		if !strings.Contains(w.Body.String(), "\n"+metric+" 0\n") && !strings.Contains(string(text), "unless "+series+" offset 15m") {
			t.Errorf("%s may begin at 1, and the alert would not see it", series)
		}
	}
}
