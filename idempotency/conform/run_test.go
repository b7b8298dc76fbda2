package conform_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestListen: an origin on an address of its own, behind a server that forwards to it.
func TestListen(t *testing.T) {
	t.Parallel()
	origin, err := conform.Listen("127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = origin.Close() })
	if _, err := conform.Listen(origin.Addr()); err == nil || !strings.Contains(err.Error(), "another address") {
		t.Errorf("an address that is taken: %v", err)
	}
	res, err := http.Get("http://" + origin.Addr() + "/conform/unknown/")
	if err != nil || res.StatusCode != http.StatusNotFound {
		t.Fatalf("a case that is not played: %v %v", res, err)
	}
	_ = res.Body.Close()
}

// TestStripe: an implementation that does as Stripe documents passes that profile.
func TestStripe(t *testing.T) {
	t.Parallel()
	origin := conform.NewOrigin()
	h := guard(t, nil, &idempotency.Options{
		Keep: []string{"default", "5xx"}, Methods: []string{http.MethodPost}, MismatchStatus: http.StatusBadRequest, WriteProblem: idempotency.WriteStripeError,
	}).Wrap(origin)
	r := run(t, h, origin, conform.Options{Profile: conform.Stripe, Skip: ofTheServer})
	passes(t, r)
	if n := r.Count(conform.Passed); n < 60 {
		t.Errorf("only %d cases are in the profile", n)
	}
	// And one that does as dibs does not.
	other := conform.NewOrigin()
	fails(t, run(t, guard(t, nil, nil).Wrap(other), other, conform.Options{Profile: conform.Stripe, Only: []string{"replay", "mismatch-body", "failed-kept"}}), "mismatch-body failed-kept", "")
}

// answering changes the header of every answer when it leaves.
func answering(change func(h http.Header, status int)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(&changing{ResponseWriter: w, change: change}, r)
		})
	}
}

type changing struct {
	http.ResponseWriter
	change func(h http.Header, status int)
}

func (w *changing) WriteHeader(status int) {
	if status >= 200 {
		w.change(w.Header(), status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *changing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestDraft: the profile of the draft has what must and should hold, and no more.
func TestDraft(t *testing.T) {
	t.Parallel()
	origin := conform.NewOrigin()
	r := run(t, guard(t, nil, nil).Wrap(origin), origin, conform.Options{Skip: ofTheServer})
	passes(t, r)
	for i := range r.Results {
		c := &r.Results[i]
		if light := c.Case.Level == conform.Practice || c.Case.Level == conform.Extension; light && c.Outcome != conform.Skipped {
			t.Errorf("in the profile: %s", c.Line())
		}
		if (c.Outcome == conform.Skipped) != (c.Why != "") {
			t.Errorf("skipped, and no word why, or the reverse: %s", c.Line())
		}
	}
}

// TestRestart: the records are still there after a restart, or they are not.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{true, false} {
		memory, err := memstore.New(nil)
		testkit.Must(t, err)
		t.Cleanup(func() { _ = memory.Close() })
		origin := conform.NewOrigin()
		var current atomic.Pointer[http.Handler]
		begin := func() {
			store := memory
			if !durable {
				if store, err = memstore.New(nil); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = store.Close() })
			}
			h := guard(t, store, nil).Wrap(origin)
			current.Store(&h)
		}
		begin()
		restarts := 0
		r := run(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*current.Load()).ServeHTTP(w, r) }), origin, conform.Options{
			Only:    []string{"replay", "restart"},
			Restart: func(context.Context) error { restarts++; begin(); return nil },
		})
		want := "restart"
		if durable {
			want = ""
		}
		fails(t, r, want, "")
		if restarts != 1 {
			t.Errorf("%d restarts", restarts)
		}
	}
}

// TestOptions: the error names the field.
func TestOptions(t *testing.T) {
	t.Parallel()
	origin := conform.NewOrigin()
	for field, o := range map[string]*conform.Options{
		"Target is":      nil,
		"Target: ":       {Target: "localhost:80", Origin: origin},
		"Target: http:":  {Target: "http://u:secret@h/", Origin: origin},
		"Origin":         {Target: "http://h"},
		"Profile":        {Target: "http://h", Origin: origin, Profile: "best"},
		"Only":           {Target: "http://h", Origin: origin, Only: []string{"x"}},
		"Skip":           {Target: "http://h", Origin: origin, Skip: []string{"x"}},
		"Header":         {Target: "http://h", Origin: origin, Header: http.Header{"A": {"b\r\nc"}}},
		"ConflictStatus": {Target: "http://h", Origin: origin, ConflictStatus: 500},
		"Timeout":        {Target: "http://h", Origin: origin, Timeout: time.Millisecond},
		"Parallel":       {Target: "http://h", Origin: origin, Parallel: -1},
	} {
		_, err := conform.Run(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), "Options."+field) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestUnable: a case that cannot be checked is reported as unable, not as failed.
func TestUnable(t *testing.T) {
	t.Parallel()
	origin := conform.NewOrigin()
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(elsewhere.Close)
	if _, err := conform.Run(t.Context(), &conform.Options{Target: elsewhere.URL, Origin: origin}); !errors.Is(err, conform.ErrOrigin) || !strings.Contains(err.Error(), "404") {
		t.Errorf("a target that leads elsewhere: %v", err)
	}
	if _, err := conform.Run(t.Context(), &conform.Options{Target: "http://127.0.0.1:1", Origin: origin}); !errors.Is(err, conform.ErrTarget) {
		t.Errorf("a target that is not there: %v", err)
	}
	swallowing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin.ServeHTTP(httptest.NewRecorder(), r)
	}))
	t.Cleanup(swallowing.Close)
	if _, err := conform.Run(t.Context(), &conform.Options{Target: swallowing.URL, Origin: origin}); !errors.Is(err, conform.ErrOrigin) || !strings.Contains(err.Error(), "arrived there") {
		t.Errorf("a target that keeps the answer: %v", err)
	}
	server := httptest.NewServer(origin)
	t.Cleanup(server.Close)
	why := errors.New("enough")
	for _, after := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(after, func() { cancel(why) })
		if _, err := conform.Run(ctx, &conform.Options{Target: server.URL, Origin: origin}); !errors.Is(err, why) {
			t.Errorf("a run that was ended after %v: %v", after, err)
		}
	}
}

// TestHeader: the header goes with every request, and the cases about principals need
// that it has no Authorization.
func TestHeader(t *testing.T) {
	t.Parallel()
	origin := conform.NewOrigin()
	guarded := guard(t, nil, nil).Wrap(origin)
	var without atomic.Int64
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer x" {
			without.Add(1)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		guarded.ServeHTTP(w, r)
	})
	about := []string{"principals-apart", "principals-blind", "principals-anonymous"}
	r := run(t, h, origin, conform.Options{
		Header: http.Header{"Authorization": {"Bearer x"}}, Profile: conform.Dibs,
		Only: append(about, "replay", "safe-get", "running-race", "request-chunked", "connection-reused", "pipelined-duplicate", "expect"),
	})
	passes(t, r)
	if n := without.Load(); n != 0 {
		t.Errorf("%d requests came without the header", n)
	}
	for i := range r.Results {
		c := &r.Results[i]
		if slices.Contains(about, c.Case.ID) != strings.Contains(c.Why, "--header") {
			t.Errorf("skipped or not: %s", c.Line())
		}
	}
}

// TestReport: both forms say the same.
func TestReport(t *testing.T) {
	t.Parallel()
	origin := conform.NewOrigin()
	r := run(t, origin, origin, conform.Options{Profile: conform.Dibs, Only: []string{"replay", "replay-marked", "safe-get"}})
	var text, lines bytes.Buffer
	for _, err := range []error{r.WriteText(&text), r.WriteJSON(&lines)} {
		testkit.Must(t, err)
	}
	if r.Conforms() || r.Count(conform.Failed) != 2 || r.Count(conform.Failed, conform.Must) != 1 || r.Count(conform.Passed, conform.Should) != 1 {
		t.Errorf("the report counts wrong: %s", r.Summary())
	}
	for _, want := range []string{"\nFAIL  must       replay ", "\n      the origin ran 2 times; want once\n", "\npass  should     safe-get", "\nskip  must       first-runs", "not asked for (--only)", ": 1 passed, 2 failed (1 must, 1 practice), "} {
		if !strings.Contains("\n"+text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
	outcomes := make(map[string]int)
	dec := json.NewDecoder(&lines)
	var last map[string]any
	for dec.More() {
		last = nil
		testkit.Must(t, dec.Decode(&last))
		if outcome, ok := last["outcome"].(string); ok {
			outcomes[outcome]++
		}
	}
	if outcomes["failed"] != 2 || outcomes["passed"] != 1 || outcomes["skipped"] != len(r.Results)-3 || last["conforms"] != false || last["failed_must"] != 1.0 {
		t.Errorf("the lines say %v and %v", outcomes, last)
	}
}
