package idempotency_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

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
