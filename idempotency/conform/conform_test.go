package conform_test

import (
	"bytes"
	"cmp"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// ofTheServer are cases about what is under a middleware: net/http, which takes a request
// that is framed in two ways for one in chunks, and continues with the connection.
var ofTheServer = []string{"request-framed-twice"}

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// guard returns the middleware over a store of its own.
func guard(t *testing.T, store dibs.Store, o *idempotency.Options) *idempotency.Middleware {
	t.Helper()
	if store == nil {
		memory, err := memstore.New(nil)
		testkit.Must(t, err)
		t.Cleanup(func() { _ = memory.Close() })
		store = memory
	}
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	m, err := idempotency.New(client, o)
	testkit.Must(t, err)
	return m
}

// run checks a handler that leads to the origin, and returns the report.
func run(t *testing.T, h http.Handler, origin *conform.Origin, o conform.Options) *conform.Report {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	o.Target, o.Origin = server.URL, origin
	// A case waits a quarter of that for an answer: a minute, however busy the machine is.
	o.Timeout = cmp.Or(o.Timeout, 4*time.Minute)
	report, err := conform.Run(t.Context(), &o)
	testkit.Must(t, err)
	return report
}

// passes checks that all cases passed but those that were left out.
func passes(t *testing.T, r *conform.Report) {
	t.Helper()
	var text bytes.Buffer
	testkit.Must(t, r.WriteText(&text))
	if n := r.Count(conform.Failed); n > 0 || !r.Conforms() {
		for line := range strings.Lines(text.String()) {
			if !strings.HasPrefix(line, "pass") && !strings.HasPrefix(line, "skip") {
				t.Log(strings.TrimSuffix(line, "\n"))
			}
		}
		t.Errorf("%d cases failed", n)
	}
	t.Log(r.Summary())
}

// fails checks that these cases failed, and no others but those that may.
func fails(t *testing.T, r *conform.Report, want, may string) {
	t.Helper()
	var failed []string
	for i := range r.Results {
		c := &r.Results[i]
		if c.Outcome == conform.Failed {
			failed = append(failed, c.Case.ID)
		}
		if slices.Contains(strings.Fields(may), c.Case.ID) {
			continue
		}
		if slices.Contains(strings.Fields(want), c.Case.ID) != (c.Outcome == conform.Failed) {
			t.Errorf("unexpected: %s", c.Line())
		}
	}
	t.Logf("%d failed: %s", len(failed), strings.Join(failed, " "))
}

// TestMiddleware: the middleware does all that it is said to do, however it is set up.
func TestMiddleware(t *testing.T) {
	for name, c := range map[string]struct {
		options idempotency.Options
		said    conform.Options
	}{
		"as it is":     {},
		"key required": {idempotency.Options{RequireKey: true}, conform.Options{RequireKey: true}},
		"strict":       {idempotency.Options{StrictKey: true}, conform.Options{StrictKey: true}},
		"keeps 5xx":    {idempotency.Options{Keep: []string{"default", "5xx"}}, conform.Options{Keeps5xx: true}},
		"at most once": {idempotency.Options{OnCrash: idempotency.AtMostOnce}, conform.Options{}},
		"duplicates wait": {
			idempotency.Options{Wait: time.Minute},
			conform.Options{Skip: []string{"running-refused", "running-retry-after", "running-problem", "stream-running"}},
		},
		"another conflict": {
			idempotency.Options{ConflictStatus: http.StatusTooManyRequests},
			conform.Options{ConflictStatus: http.StatusTooManyRequests},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			origin := conform.NewOrigin()
			c.said.Profile, c.said.Skip = conform.Dibs, append(c.said.Skip, ofTheServer...)
			passes(t, run(t, guard(t, nil, &c.options).Wrap(origin), origin, c.said))
		})
	}
}

// TestSlow: a target that takes longer than an answer is kept is not a wrong one.
func TestSlow(t *testing.T) {
	t.Parallel()
	var others []string
	for _, c := range conform.Cases() {
		if c.ID != "control-max-age" {
			others = append(others, c.ID)
		}
	}
	origin := conform.NewOrigin()
	guarded := guard(t, nil, &idempotency.Options{}).Wrap(origin)
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2100 * time.Millisecond) // the case keeps an answer for 2 s
		guarded.ServeHTTP(w, r)
	}
	passes(t, run(t, http.HandlerFunc(slow), origin, conform.Options{Profile: conform.Dibs, Skip: others}))
}

// TestList: the published page is the list.
func TestList(t *testing.T) {
	published := testkit.ReadFile(t, "../../docs/reference/conformance.md")
	var list bytes.Buffer
	testkit.Must(t, conform.WriteList(&list))
	if !bytes.Equal(published, list.Bytes()) {
		t.Error("docs/reference/conformance.md is not what the cases say: go run ./cmd/dibs-prove conform --list > docs/reference/conformance.md")
	}
}

// TestCases: every case says all of what it is, and is like no other.
func TestCases(t *testing.T) {
	all := conform.Cases()
	if len(all) < 100 {
		t.Errorf("there are %d cases", len(all))
	}
	seen := make(map[string]bool)
	for _, c := range all {
		switch {
		case !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(c.ID) || len(c.ID) > 24:
			t.Errorf("%q is not a name of a case", c.ID)
		case seen[c.ID], seen[c.Title]:
			t.Errorf("%s: there is another one of that name or title", c.ID)
		case c.Title == "" || len(c.Sources) == 0:
			t.Errorf("%s does not say all: %+v", c.ID, c)
		case !slices.Contains(conform.Levels, c.Level):
			t.Errorf("%s has the level %q", c.ID, c.Level)
		case strings.HasSuffix(c.Title, ".") || strings.Contains(c.Title, "|"):
			t.Errorf("%s: a title is a cell of a table, without a full stop", c.ID)
		}
		seen[c.ID], seen[c.Title] = true, true
		for _, s := range c.Sources {
			if s.Text == "" || !strings.HasPrefix(s.URL, "https://") {
				t.Errorf("%s has the source %v", c.ID, s)
			}
		}
	}
}
