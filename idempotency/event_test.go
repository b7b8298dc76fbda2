package idempotency_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
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

// withClient runs a test in a bubble, with the guard of a client.
func withClient(t *testing.T, co *dibs.Options, mo *idempotency.Options, h func(*faulty) http.HandlerFunc, test func(*faulty, http.Handler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New(nil)
		testkit.Must(t, err)
		t.Cleanup(func() { _ = mem.Close() })
		s := &faulty{Store: mem}
		c, err := dibs.New(s, co)
		testkit.Must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		m, err := idempotency.New(c, mo)
		testkit.Must(t, err)
		test(s, m.Wrap(h(s)))
	})
}

// TestLeaseIsTheClients: without Options.Lease, a key stays held after a crash for as long as the
// client's TTL says.
func TestLeaseIsTheClients(t *testing.T) {
	for _, c := range []struct{ ttl, lease, want time.Duration }{
		{0, 0, dibs.DefaultTTL},
		{3 * time.Second, 0, 3 * time.Second},
		{time.Minute, 0, time.Minute},
		{20 * time.Millisecond, 0, time.Second},
		{3 * time.Second, 10 * time.Second, 10 * time.Second},
	} {
		var left time.Duration
		look := func(s *faulty) http.HandlerFunc {
			return func(_ http.ResponseWriter, r *http.Request) {
				for e := range s.List(r.Context(), store.Query{}) {
					left = e.Runs[0].Left
				}
			}
		}
		withClient(t, &dibs.Options{TTL: c.ttl}, &idempotency.Options{Lease: c.lease, Logger: slog.New(slog.DiscardHandler)}, look, func(_ *faulty, h http.Handler) { sendTo(h) })
		if left != c.want {
			t.Errorf("TTL %v and Lease %v: the key is held for %v, want %v", c.ttl, c.lease, left, c.want)
		}
	}
}

// TestOneLogger: the client's logger gets the middleware's warnings, too, and by default both log to
// slog.Default. A store that fails is logged there.
func TestOneLogger(t *testing.T) {
	twice := func(*faulty) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); w.WriteHeader(200) }
	}
	for name, give := range map[string]func(*testing.T, *slog.Logger) *dibs.Options{
		"the client's": func(_ *testing.T, l *slog.Logger) *dibs.Options { return &dibs.Options{Logger: l} },
		"the default": func(t *testing.T, l *slog.Logger) *dibs.Options {
			before := slog.Default()
			slog.SetDefault(l)
			t.Cleanup(func() { slog.SetDefault(before) })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(bytes.Buffer)
			withClient(t, give(t, slog.New(slog.NewTextHandler(log, nil))), nil, twice, func(s *faulty, h http.Handler) {
				sendTo(h)
				if !strings.Contains(log.String(), "WriteHeader") {
					t.Errorf("of the handler the log has %q", log)
				}
				s.fail(failing("claim", errDown))
				for range 100 {
					isProblem(t, sendTo(h, withKey("other")), "store-unavailable", 503)
				}
				if n := strings.Count(log.String(), "the store fails"); n == 0 || !strings.Contains(log.String(), errDown.Error()) {
					t.Errorf("of a store that is down the log has %q", log)
				}
			})
		})
	}
}

// A missing handler or function is found when the program starts, not by a request that has its key.
func TestNothingToRun(t *testing.T) {
	for name, call := range map[string]func(){
		"Wrap":     func() { new(idempotency.Middleware).Wrap(nil) },
		"KeyOf":    func() { idempotency.KeyOf(idempotency.KeyHeader("A"), nil) },
		"KeyFirst": func() { idempotency.KeyFirst(nil) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, name) {
					t.Errorf("%s: %q", name, text)
				}
			}()
			call()
		}()
	}
}

// TestStepInAHandler: a run that crashed after its first step is taken over by
// the retry, which skips that step.
func TestStepInAHandler(t *testing.T) {
	var charges, mails atomic.Int64
	handler := func(w http.ResponseWriter, r *http.Request) {
		id, err := dibs.Step(r.Context(), "charge", func(context.Context) (string, error) {
			return fmt.Sprintf("ch_%d", charges.Add(1)), nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if mails.Add(1) == 1 {
			// As if the process died here: nothing is settled by it.
			lease, ok := dibs.FromContext(r.Context())
			if !ok {
				t.Error("the handler's context carries no lease")
			}
			testkit.Check(t, lease.Abandon(r.Context()))
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, id)
	}
	g := newRig(t, nil, handler)
	g.sendBroken()
	w := g.send()
	if w.Code != 200 || w.Body.String() != "ch_1" || charges.Load() != 1 || mails.Load() != 2 {
		t.Errorf("%d, %q after %d charges and %d mails", w.Code, w.Body, charges.Load(), mails.Load())
	}
	isReplay(t, g.send(), w)

	// Without a key there is nothing to remember a step with.
	if w := g.send(with("Idempotency-Key")); w.Code != 500 || strings.TrimSpace(w.Body.String()) != dibs.ErrNoLease.Error() {
		t.Errorf("without a key: %d, %q", w.Code, w.Body)
	}
}
