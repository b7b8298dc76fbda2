package metrics

import (
	"context"
	"errors"
	"iter"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

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
