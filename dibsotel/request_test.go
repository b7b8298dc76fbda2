package dibsotel_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/dibsotel"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// The outcomes add up to the requests, and a replay's span links to the run's trace.
func TestRequests(t *testing.T) {
	b := newBench(t)
	m, err := idempotency.New(b.client, &idempotency.Options{Observe: b.Request, Trace: dibsotel.Trace, StoreTimeout: time.Minute})
	testkit.Must(t, err)
	inside, leave := make(chan bool), make(chan bool)
	handler := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			inside <- true
			<-leave
		}
		w.WriteHeader(http.StatusCreated)
	}))
	sent := int64(0)
	var traces []string
	send := func(method, path, key, body string) int {
		sent++
		ctx, span := b.tracer.Tracer("test").Start(t.Context(), "root")
		defer span.End()
		traces = append(traces, span.SpanContext().TraceID().String())
		r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
		r.Header.Set("Authorization", secret)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	send("POST", "/charges", secret, "a")
	send("POST", "/charges", secret, "a")
	send("POST", "/charges", secret, "b")
	send("POST", "/charges", "", "b")
	send("GET", "/charges", secret, "")
	send("POST", "/charges", "\"", "b")
	slow := make(chan bool)
	go func() { defer close(slow); send("POST", "/slow", "slow", "") }()
	<-inside
	conflict := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/slow", nil)
	r.Header.Set("Idempotency-Key", "slow")
	r.Header.Set("Authorization", secret)
	handler.ServeHTTP(conflict, r)
	leave <- true
	<-slow
	sent++

	read, total := b.read(t), int64(0)
	got := map[string]int64{}
	for series, n := range read {
		if what, ok := strings.CutPrefix(series, "dibs.request.duration{dibs.outcome="); ok {
			total += n
			got[strings.TrimSuffix(what, "}")] = n
		}
	}
	if total != sent {
		t.Errorf("%d requests are counted, %d were sent: %v", total, sent, got)
	}
	for outcome, want := range map[idempotency.EventKind]int64{
		idempotency.EventRan: 2, idempotency.EventReplayed: 1, idempotency.EventMismatch: 1,
		idempotency.EventUnguarded: 2, idempotency.EventInvalid: 1, idempotency.EventConflict: 1,
	} {
		if got[string(outcome)] != want {
			t.Errorf("%d %s, want %d: %v", got[string(outcome)], outcome, want, got)
		}
	}
	links := 0
	for _, s := range b.spans.Ended() {
		if s.Name() != "dibs.replay" {
			continue
		}
		for _, l := range s.Links() {
			links++
			if l.SpanContext.TraceID().String() != traces[0] || s.SpanContext().TraceID().String() != traces[1] {
				t.Errorf("a replay in %s links to %s, want %s", s.SpanContext().TraceID(), l.SpanContext.TraceID(), traces[0])
			}
		}
	}
	if links != 1 {
		t.Errorf("%d links of replays, want 1: %q", links, b.names())
	}
}
