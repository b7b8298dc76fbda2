package dibsotel_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/dibsotel"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// secret is in keys, credentials and labels, and must be nowhere else.
const secret = "customer-4711"

// bench is a Telemetry that exports to the test, and a client that it observes.
type bench struct {
	*dibsotel.Telemetry
	reader *metric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer *trace.TracerProvider
	client *dibs.Client
}

func newBench(t *testing.T) *bench {
	t.Helper()
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	return newBenchOn(t, store)
}

func newBenchOn(t *testing.T, store dibs.Store) *bench {
	t.Helper()
	b := &bench{reader: metric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	b.tracer = trace.NewTracerProvider(trace.WithSpanProcessor(b.spans))
	var err error
	b.Telemetry, err = dibsotel.New(&dibsotel.Options{
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(b.reader)),
		TracerProvider: b.tracer,
	})
	testkit.Must(t, err)
	b.client, err = dibs.New(store, &dibs.Options{Label: secret, Observe: b.Lease, ObserveStore: b.StoreCall})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = b.client.Close() })
	return b
}

// read returns each series' value, or how often its histogram was recorded to, by its name
// and attributes.
func (b *bench) read(t *testing.T) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	testkit.Must(t, b.reader.Collect(t.Context(), &all))
	read := map[string]int64{}
	name := func(m metricdata.Metrics, set attribute.Set) string {
		return m.Name + "{" + set.Encoded(attribute.DefaultEncoder()) + "}"
	}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					read[name(m, p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					read[name(m, p.Attributes)] = int64(p.Count)
				}
			default:
				t.Errorf("%s is a %T", m.Name, m.Data)
			}
		}
	}
	for series := range read {
		if strings.Contains(series, secret) {
			t.Errorf("a series has a key, a credential or a label: %s", series)
		}
	}
	return read
}

// names returns the names of the spans, in the order in which they began.
func (b *bench) names() []string {
	var names []string
	for _, s := range b.spans.Ended() {
		names = append(names, s.Name())
	}
	return names
}

func TestLeases(t *testing.T) {
	b := newBench(t)
	ctx, root := b.tracer.Tracer("test").Start(t.Context(), "root")
	lease, err := b.client.Acquire(ctx, secret, nil)
	testkit.Must(t, err)
	if err := b.client.TryDo(ctx, secret, func(context.Context) error { return nil }); !errors.Is(err, dibs.ErrHeld) {
		t.Fatal(err)
	}
	if n := b.read(t)["dibs.lease.active{}"]; n != 1 {
		t.Errorf("%d leases are active, want 1", n)
	}
	testkit.Must(t, lease.Release())
	root.End()
	read := b.read(t)
	for series, want := range map[string]int64{
		"dibs.claim.duration{dibs.outcome=acquired,dibs.queued=false}": 1,
		"dibs.claim.duration{dibs.outcome=held,dibs.queued=false}":     1,
		"dibs.lease.duration{dibs.outcome=released}":                   1,
		"dibs.lease.active{}":                        0,
		"dibs.store.call.duration{dibs.call=claim}":  2,
		"dibs.store.call.duration{dibs.call=settle}": 1,
		"dibs.store.call.elements{dibs.call=claim}":  2,
	} {
		if got, ok := read[series]; !ok || got != want {
			t.Errorf("%s is %d, want %d; all: %v", series, got, want, read)
		}
	}
	if names, want := b.names(), []string{"dibs.claim", "dibs.claim", "dibs.run", "dibs.settle", "root"}; !slices.Equal(names, want) {
		t.Errorf("spans %q, want %q", names, want)
	}
	for _, s := range b.spans.Ended()[:4] {
		if s.SpanContext().TraceID() != root.SpanContext().TraceID() {
			t.Errorf("%s belongs to another trace", s.Name())
		}
		for _, a := range s.Attributes() {
			if strings.Contains(a.Value.String(), secret) {
				t.Errorf("%s has %s", s.Name(), a.Value)
			}
		}
	}
}

// A refusal has a name for its reason, whatever the cause with which a caller's context
// ends.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		held, err := b.client.Acquire(t.Context(), "k", nil)
		testkit.Must(t, err)
		defer held.Release()
		if _, err := b.client.TryAcquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 2}); !errors.Is(err, dibs.ErrHeld) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(errors.New("a deployment")) })
		if _, err := b.client.Acquire(ctx, "k", nil); err == nil {
			t.Fatal("a context that had ended got a key")
		}
		read := b.read(t)
		for _, series := range []string{
			"dibs.claim.duration{dibs.outcome=held,dibs.queued=false}",
			"dibs.claim.duration{dibs.outcome=canceled,dibs.queued=true}",
		} {
			if read[series] != 1 {
				t.Errorf("%s is %d, want 1; all: %v", series, read[series], read)
			}
		}
	})
}

// hanging is a store that does not answer, and says nothing of it but its own.
type hanging struct{ *memstore.Store }

func (hanging) Claim(ctx context.Context, _ []store.Claim, _ []store.Answer) error {
	<-ctx.Done()
	return errors.New("the connection was closed")
}

// A store that does not answer in time has another outcome than a caller whose context ended.
func TestUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(nil)
		testkit.Must(t, err)
		b := newBenchOn(t, hanging{store})
		m, err := idempotency.New(b.client, &idempotency.Options{StoreTimeout: time.Millisecond})
		testkit.Must(t, err)
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
		r.Header.Set("Idempotency-Key", "k")
		m.Wrap(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { cancel(errors.New("a deployment")) })
		if _, err := b.client.Acquire(ctx, "k", nil); err == nil {
			t.Fatal("a store that does not answer granted a key")
		}
		read := b.read(t)
		for _, series := range []string{
			"dibs.claim.duration{dibs.outcome=unanswered,dibs.queued=false}",
			"dibs.claim.duration{dibs.outcome=canceled,dibs.queued=false}",
			"dibs.store.call.duration{dibs.call=claim,error.type=timeout}",
			"dibs.store.call.duration{dibs.call=claim,error.type=canceled}",
		} {
			if read[series] != 1 {
				t.Errorf("%s is %d, want 1; all: %v", series, read[series], read)
			}
		}
	})
}

// refusing is a store whose claims fail with an error that names its type.
type refusing struct {
	*memstore.Store
	kind string
}

func (r refusing) Claim(context.Context, []store.Claim, []store.Answer) error {
	return fmt.Errorf("the claim: %w", r)
}

func (r refusing) Error() string { return "the server refuses the password secret" }

func (r refusing) ErrorType() string { return r.kind }

// TestErrorType: a call that failed is counted by the type that its error names.
func TestErrorType(t *testing.T) {
	for _, kind := range []string{"unauthorized", "read_only"} {
		synctest.Test(t, func(t *testing.T) {
			store, err := memstore.New(nil)
			testkit.Must(t, err)
			b := newBenchOn(t, refusing{store, kind})
			if err := b.client.TryDo(t.Context(), "k", func(context.Context) error { return nil }); err == nil {
				t.Fatal("a store that fails granted a key")
			}
			read := b.read(t)
			if series := "dibs.store.call.duration{dibs.call=claim,error.type=" + kind + "}"; read[series] == 0 {
				t.Errorf("%s is not there; all: %v", series, read)
			}
		})
	}
}

// A key that is held or done is an answer, and no error of the trace.
func TestAnswersAreNoErrors(t *testing.T) {
	b := newBench(t)
	ctx, root := b.tracer.Tracer("test").Start(t.Context(), "root")
	defer root.End()
	once := func(context.Context) (int, error) { return 1, nil }
	for range 2 {
		if _, err := dibs.Once(ctx, b.client, "k", nil, once); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range b.spans.Ended() {
		if s.Status().Code == codes.Error {
			t.Errorf("%s %v is an error", s.Name(), s.Attributes())
		}
	}
}

// A program that has two clients, each with a Telemetry of its own, has the leases of both.
func TestTwoOfOneProvider(t *testing.T) {
	b := &bench{reader: metric.NewManualReader()}
	provider := metric.NewMeterProvider(metric.WithReader(b.reader))
	for range 2 {
		one, err := dibsotel.New(&dibsotel.Options{MeterProvider: provider})
		testkit.Must(t, err)
		one.Lease(t.Context(), dibs.Event{Kind: dibs.EventAcquired})
	}
	if n := b.read(t)["dibs.lease.active{}"]; n != 2 {
		t.Errorf("%d leases are active, want 2", n)
	}
}

// Counters are there before what they count has happened, so that its first time is seen.
func TestCountersBegin(t *testing.T) {
	read := newBench(t).read(t)
	for _, series := range []string{"dibs.lease.active{}", "dibs.claim.undone{}", "dibs.request.unstored{}"} {
		if n, ok := read[series]; !ok || n != 0 {
			t.Errorf("%s is %d, there: %v", series, n, ok)
		}
	}
}

// A client whose caller has no trace begins none.
func TestNoTraceOfItsOwn(t *testing.T) {
	b := newBench(t)
	testkit.Must(t, b.client.Do(t.Context(), "k", func(context.Context) error { return nil }))
	if names := b.names(); len(names) != 0 {
		t.Errorf("spans %q", names)
	}
}

func TestJobs(t *testing.T) {
	b := newBench(t)
	b.Job(t.Context(), jobs.Event{Kind: jobs.EventAcquired, JobKind: secret, Waited: time.Second})
	b.Job(t.Context(), jobs.Event{Kind: jobs.EventRemembered, JobKind: secret, Ran: time.Second}) // it continues, and succeeds
	b.Job(t.Context(), jobs.Event{Kind: jobs.EventSucceeded, JobKind: secret, Waited: time.Second, Ran: time.Second})
	read := b.read(t)
	for series, want := range map[string]int64{
		"dibs.job.count{dibs.outcome=acquired}":  1,
		"dibs.job.count{dibs.outcome=succeeded}": 1,
		"dibs.job.duration{dibs.phase=waiting}":  1,
		"dibs.job.duration{dibs.phase=running}":  1,
	} {
		if read[series] != want {
			t.Errorf("%s is %d, want %d", series, read[series], want)
		}
	}
}

// The metrics in the package's comment are those that there are.
func TestDocumentedMetrics(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"doc.go", "telemetry.go"} {
		source := testkit.ReadFile(t, name)
		text.WriteString(string(source))
	}
	documented, made := names(text.String(), `(?m)^//\t(dibs\.[a-z.]+) `), names(text.String(), `"(dibs\.[a-z]+\.[a-z.]+)"`)
	if !slices.Equal(documented, made) {
		t.Errorf("documented are %q, made %q", documented, made)
	}
}

func names(text, pattern string) []string {
	var all []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

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
