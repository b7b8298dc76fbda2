package conform_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// shop is a service that takes orders, and knows nothing of the kit. If it is terse, all its answers
// are the same.
func shop(terse bool) http.Handler {
	var orders atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var order struct{ Item string }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Item == "" || r.URL.Path != "/v1/orders" {
			http.Error(w, "an order has an item", http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if id := orders.Add(1); terse {
			fmt.Fprint(w, `{"ok":true}`)
		} else {
			fmt.Fprintf(w, `{"id":%d,"item":%q}`, id, order.Item)
		}
	})
}

// outside checks a service.
func outside(t *testing.T, h http.Handler, o conform.Options) (*conform.Report, error) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	o.Target, o.Service = server.URL+"/v1/orders", true
	o.Body, o.OtherBody = cmp.Or(o.Body, `{"item":"a book"}`), `{"item":"a pen"}`
	o.Timeout = cmp.Or(o.Timeout, 4*time.Minute)
	return conform.Run(t.Context(), &o)
}

// outcomes counts the outcomes, and says why cases were not judged.
func outcomes(t *testing.T, r *conform.Report, whys ...string) {
	t.Helper()
	for i := range r.Results {
		c := &r.Results[i]
		if (c.Why == "") != (c.Outcome == conform.Passed || c.Outcome == conform.Failed) {
			t.Errorf("no word why, or one too many: %s", c.Line())
		}
		said := c.Outcome != conform.NotJudged
		for _, why := range whys {
			said = said || strings.HasPrefix(c.Why, "not judged: needs "+why)
		}
		if !said {
			t.Errorf("not judged: %s", c.Line())
		}
	}
}

// TestService: a service that nothing is known of is judged by its answers. What they do not show is
// not judged, and not passed.
func TestService(t *testing.T) {
	t.Parallel()
	for profile, o := range map[conform.Profile]*idempotency.Options{
		conform.Dibs:  nil,
		conform.Draft: nil,
		conform.Stripe: {
			Keep: []string{"default", "5xx"}, MismatchStatus: http.StatusBadRequest, WriteProblem: idempotency.WriteStripeError,
		},
		conform.ACP: {
			RequireKey: true, KeyPer: idempotency.KeyPerPath, WriteProblem: idempotency.WriteACPError,
		},
		conform.UCP: {MismatchStatus: http.StatusConflict, WriteProblem: idempotency.WriteUCPError},
	} {
		t.Run(string(profile), func(t *testing.T) {
			t.Parallel()
			guarded, err := outside(t, guard(t, nil, o).Wrap(shop(false)), conform.Options{Profile: profile})
			testkit.Must(t, err)
			passes(t, guarded)
			outcomes(t, guarded, "an origin behind the target")
			if passed, unjudged := guarded.Count(conform.Passed), guarded.Count(conform.NotJudged, conform.Must); passed < 15 || unjudged < 10 ||
				!strings.Contains(guarded.Summary(), fmt.Sprintf("(%d must)", unjudged)) {
				t.Errorf("%d must are not judged: %s", unjudged, guarded.Summary())
			}
			bare, err := outside(t, shop(false), conform.Options{Profile: profile, Timeout: time.Second})
			testkit.Must(t, err)
			if bare.Conforms() || bare.Count(conform.Failed, conform.Must) < 5 || bare.Count(conform.NotJudged) != guarded.Count(conform.NotJudged) {
				t.Errorf("without a guard: %s", bare.Summary())
			}
		})
	}
}

// TestTerseService: if all answers are the same, a replay looks like a second run, so it is not judged.
func TestTerseService(t *testing.T) {
	t.Parallel()
	r, err := outside(t, guard(t, nil, nil).Wrap(shop(true)), conform.Options{Profile: conform.Dibs})
	testkit.Must(t, err)
	passes(t, r)
	outcomes(t, r, "an origin behind the target", "answers that differ")
	for i := range r.Results {
		if c := &r.Results[i]; c.Case.ID == "replay" && c.Outcome != conform.NotJudged || c.Case.ID == "mismatch-body" && c.Outcome != conform.Passed {
			t.Errorf("judged or not: %s", c.Line())
		}
	}
}

// late lets two requests of a key run, and keeps the second answer.
func late(next http.Handler) http.Handler {
	var mu sync.Mutex
	came, answers := map[string]int{}, map[string]*httptest.ResponseRecorder{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		if came[key]++; came[key] <= 2 {
			answers[key] = httptest.NewRecorder()
			next.ServeHTTP(answers[key], r)
		}
		w.WriteHeader(answers[key].Code)
		_, _ = w.Write(answers[key].Body.Bytes())
	})
}

// TestBrokenService: a fault of a service fails the case that is about it.
func TestBrokenService(t *testing.T) {
	t.Parallel()
	only := []string{"replay", "mismatch-body", "mismatch-unharmed", "running-race", "keys-apart"}
	for want, h := range map[string]http.Handler{
		"mismatch-body": guard(t, nil, &idempotency.Options{Fingerprint: idempotency.FingerprintOptions{KeyAlone: true}}).Wrap(shop(false)),
		"replay mismatch-body mismatch-unharmed running-race": late(shop(false)),
	} {
		r, err := outside(t, h, conform.Options{Only: only})
		testkit.Must(t, err)
		fails(t, r, want, "")
	}
}

// TestServiceRefuses: a request that the service does not take judges nothing.
func TestServiceRefuses(t *testing.T) {
	t.Parallel()
	if _, err := outside(t, shop(false), conform.Options{Body: `{"amount":1200}`}); !errors.Is(err, conform.ErrService) || !strings.Contains(err.Error(), `/v1/orders was answered 422`) {
		t.Errorf("a body that is not an order: %v", err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	if _, err := conform.Run(t.Context(), &conform.Options{Target: gone.URL, Service: true}); !errors.Is(err, conform.ErrTarget) || strings.Count(err.Error(), conform.ErrTarget.Error()) != 1 {
		t.Errorf("a service that is not there: %v", err)
	}
	endless := testkit.Listen(t)
	go func() {
		for c, err := endless.Accept(); err == nil; c, err = endless.Accept() {
			for err == nil {
				_, err = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: "+strings.Repeat("x", 1000)+"\r\n\r\n")
			}
		}
	}()
	if _, err := conform.Run(t.Context(), &conform.Options{Target: "http://" + endless.Addr().String(), Service: true}); !errors.Is(err, conform.ErrTarget) || !strings.Contains(err.Error(), "more than 1 MiB") {
		t.Errorf("a service whose header does not end: %v", err)
	}
	for field, o := range map[string]*conform.Options{
		"Service":   {Target: "http://h", Service: true, Origin: conform.NewOrigin()},
		"Body":      {Target: "http://h", Body: "{}", Origin: conform.NewOrigin()},
		"OtherBody": {Target: "http://h", Service: true, Body: `{"amount":1300}`},
	} {
		if _, err := conform.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
