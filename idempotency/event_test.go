package idempotency_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// Options.Observe is called once for a request, even when a function of the application panics.
func TestPanicsAreObserved(t *testing.T) {
	boom := func() { panic(http.ErrAbortHandler) }
	for name, o := range map[string]*idempotency.Options{
		"key":         {Key: func(*http.Request, io.ReadSeeker) (string, error) { boom(); return "", nil }},
		"fingerprint": {Fingerprint: idempotency.FingerprintOptions{Func: func(*http.Request, io.ReadSeeker) (dibs.Fingerprint, error) { boom(); return dibs.Fingerprint{}, nil }}},
		"trace":       {Trace: func(context.Context) string { boom(); return "" }},
	} {
		g := newRig(t, o, nil)
		g.sendBroken()
		if events := g.seen(); len(events) != 1 || events[0].Kind != idempotency.EventInterrupted || events[0].Status != 0 {
			t.Errorf("%s: observed %+v", name, events)
		}
	}
	g := newRig(t, nil, nil)
	w := &panicking{httptest.NewRecorder()}
	func() {
		defer func() { _ = recover() }()
		g.h.ServeHTTP(w, request())
	}()
	if events := g.seen(); len(events) != 1 || events[0].Kind != idempotency.EventInterrupted || events[0].Status != 0 || !events[0].Stored {
		t.Errorf("the answer could not be sent: observed %+v", events)
	}
}

// panicking is a ResponseWriter of a server that ends requests with a panic.
type panicking struct{ http.ResponseWriter }

func (p *panicking) Write([]byte) (int, error) { panic(http.ErrAbortHandler) }

type traceKey struct{}

// A replay names the trace of the run whose answer it is, and no client sees that.
func TestReplayNamesTheFirstTrace(t *testing.T) {
	const first = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	g := newRig(t, &idempotency.Options{Trace: func(ctx context.Context) string {
		trace, _ := ctx.Value(traceKey{}).(string)
		return trace
	}}, nil)
	within := func(trace string) change {
		return func(r *http.Request) { *r = *r.WithContext(context.WithValue(r.Context(), traceKey{}, trace)) }
	}
	isFresh(t, g.send(within(first)), 201)
	w := g.send(within("another"))
	if e := g.last(); e.Kind != idempotency.EventReplayed || e.First != first {
		t.Errorf("observed %+v", e)
	}
	for name, values := range w.Header() {
		for _, value := range values {
			if value == first {
				t.Errorf("the replay has %s: %s", name, value)
			}
		}
	}
}

// TestEventNamesTheKeyInItsNamespace: the digest of a log line is the one that dibs show finds, and
// the key is logged as its digest.
func TestEventNamesTheKeyInItsNamespace(t *testing.T) {
	s, err := memstore.New(nil)
	testkit.Must(t, err)
	client, err := dibs.New(s, &dibs.Options{Namespace: "shop"})
	testkit.Must(t, err)
	defer client.Close()
	var seen idempotency.Event
	m, err := idempotency.New(client, &idempotency.Options{Observe: func(_ context.Context, e idempotency.Event) { seen = e }})
	testkit.Must(t, err)
	var held dibs.Key
	m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		lease, _ := dibs.FromContext(r.Context())
		held = lease.Key()
	})).ServeHTTP(httptest.NewRecorder(), request())
	if seen.Key() != held.Digest() || seen.StoreKey() != held || held.Namespace != "shop" {
		t.Errorf("the event names %q, and the lease %q of %q", seen.Key(), held.Digest(), held.Namespace)
	}
	var line strings.Builder
	slog.New(slog.NewTextHandler(&line, nil)).Info("it", "key", seen.StoreKey())
	if !strings.HasSuffix(line.String(), " key="+held.Digest()+"\n") {
		t.Errorf("logged is %s", line.String())
	}
	var none idempotency.Event
	if none.Key() != "" {
		t.Errorf("no key has the digest %q", none.Key())
	}
}
