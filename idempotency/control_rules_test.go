package idempotency_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

var noTime time.Time

func newLog(w io.Writer) *log.Logger { return log.New(w, "", 0) }

var controlRules = []rule{
	{"Answers below 500 are kept", func(t *testing.T) {
		passing := []int{401, 407, 408, 409, 423, 425, 429}
		for _, test := range []struct {
			name string
			o    idempotency.Options
			kept func(status int) bool
		}{
			{"default", idempotency.Options{}, func(s int) bool { return s < 500 && !slices.Contains(passing, s) }},
			{"Keep of the default", idempotency.Options{Keep: []string{"default", "5xx"}}, func(s int) bool { return !slices.Contains(passing, s) }},
			{"Keep", idempotency.Options{Keep: []string{"2xx", "429", "503"}}, func(s int) bool { return s < 300 || s == 429 || s == 503 }},
		} {
			for _, status := range []int{200, 201, 204, 301, 304, 400, 401, 402, 404, 407, 408, 409, 410, 412, 422, 423, 425, 429, 451, 500, 501, 503, 599} {
				g := newRig(t, &test.o, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) })
				g.send()
				second := g.send()
				if replayed := second.Header().Get("Idempotent-Replayed") == "true"; replayed != test.kept(status) || second.Code != status {
					t.Errorf("%s: %d: replayed %v", test.name, status, replayed)
				}
			}
		}
	}},
	{"An answer with Retry-After is not kept", func(t *testing.T) {
		for _, test := range []struct {
			status         int
			after, control string
			kept           bool
		}{
			{404, "1", "", false},
			{403, "Wed, 21 Oct 2026 07:28:00 GMT", "", false},
			{202, "5", "", false},
			{301, "", "", true},
			{409, "", "", false},
			{409, "1", "max-age=60", true},
			{423, "", "max-age=60", true},
			{429, "1", "max-age=60", true},
			{404, "1", "max-age=60", true},
			{404, "1", "no-store", false},
			{503, "1", "max-age=60", false},
		} {
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
				if test.after != "" {
					w.Header().Set("Retry-After", test.after)
				}
				if test.control != "" {
					w.Header().Set("Idempotency-Control", test.control)
				}
				w.WriteHeader(test.status)
			})
			g.send()
			if replayed := g.send().Header().Get("Idempotent-Replayed") == "true"; replayed != test.kept {
				t.Errorf("%d, Retry-After %q, %q: replayed %v", test.status, test.after, test.control, replayed)
			}
		}
	}},
	{"An answer that is not kept frees the key", func(t *testing.T) {
		var g *rig
		g = newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if g.runs.Load() == 1 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		g.h.ServeHTTP(&watcher{ResponseWriter: httptest.NewRecorder(), sent: func() {
			isFresh(t, g.send(), 200) // before the first answer is sent
		}}, request())
		g.ran(2)
		// Free for another request, too.
		f := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		f.send()
		isFresh(t, f.send(withBody("other")), 500)
	}},
	{"Answers are kept for a day", inBubble(func(t *testing.T) {
		for retention, o := range map[time.Duration]*idempotency.Options{24 * time.Hour: nil, time.Minute: {Retention: time.Minute}} {
			g := newRig(t, o, nil)
			first := g.send()
			time.Sleep(retention - time.Second)
			isReplay(t, g.send(), first)
			time.Sleep(2 * time.Second)
			isFresh(t, g.send(), 201)
			g.ran(2)
		}
	})},
	{"The application decides per answer", inBubble(func(t *testing.T) {
		for _, test := range []struct {
			lines  []string
			status int
			keeps  time.Duration // 0: not at all
		}{
			{[]string{"no-store"}, 200, 0},
			{[]string{"No-Store"}, 200, 0},
			{[]string{"max-age=60"}, 200, time.Minute},
			{[]string{"MAX-AGE=172800"}, 200, 48 * time.Hour},
			{[]string{"max-age=0"}, 200, 0},
			{[]string{"max-age=60, no-store"}, 200, 0},
			{[]string{"no-store", "max-age=60"}, 200, 0},
			{[]string{" max-age=60 , "}, 200, time.Minute},
			{[]string{"max-age=60, max-age=30"}, 200, 30 * time.Second},
			{[]string{"max-age=30", "max-age=60"}, 200, 30 * time.Second},
			{[]string{"max-age=60"}, 500, 0},
			{[]string{"max-age=-1"}, 200, 24 * time.Hour},
			{[]string{"max-age=soon"}, 200, 24 * time.Hour},
			{[]string{`max-age="60"`}, 200, 24 * time.Hour},
			{[]string{"max-age"}, 200, 24 * time.Hour},
			{[]string{"no-store=1"}, 200, 24 * time.Hour},
			{[]string{"private, max-age=60"}, 200, time.Minute},
			{[]string{""}, 200, 24 * time.Hour},
		} {
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Idempotency-Control"] = test.lines
				w.WriteHeader(test.status)
			})
			isFresh(t, g.send(), test.status)
			if test.keeps > 0 {
				time.Sleep(test.keeps - time.Second)
				if w := g.send(); w.Header().Get("Idempotent-Replayed") != "true" {
					t.Errorf("%q: not kept for %v", test.lines, test.keeps)
				}
				time.Sleep(2 * time.Second)
			}
			if w := g.send(); w.Header().Get("Idempotent-Replayed") != "" {
				t.Errorf("%q: kept for longer than %v", test.lines, test.keeps)
			}
		}
	})},
	{"Idempotency-Control never leaves", func(t *testing.T) {
		for name, write := range map[string]func(w http.ResponseWriter){
			"nothing": func(http.ResponseWriter) {},
			"header":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) },
			"body":    func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) },
			"string":  func(w http.ResponseWriter) { _, _ = io.WriteString(w, "x") },
			"copy":    func(w http.ResponseWriter) { _, _ = io.Copy(w, onlyReader{strings.NewReader("x")}) },
			"flush":   func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
			"trailer": func(w http.ResponseWriter) {
				w.Header().Set("Trailer", "Idempotency-Control")
				_, _ = w.Write([]byte("x"))
				w.Header().Set("Idempotency-Control", "no-store")
				w.Header().Set(http.TrailerPrefix+"Idempotency-Control", "no-store")
			},
		} {
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Idempotency-Control", "max-age=60")
				w.Header()["idempotency-control"] = []string{"max-age=50"}
				write(w)
			})
			server := httptest.NewServer(g.h)
			for _, c := range [][]change{nil, nil, {with("Idempotency-Key")}, {withMethod("GET"), withBody("")}, {withMethod("GET"), withBody(""), with("Idempotency-Key")}} {
				res, _, err := wire(t, server, c...)
				if err != nil {
					t.Fatal(name, err)
				}
				if res.Header.Get("Idempotency-Control") != "" || len(res.Trailer.Get("Idempotency-Control")) != 0 {
					t.Errorf("%s: Idempotency-Control left: %v %v", name, res.Header, res.Trailer)
				}
			}
			server.Close()
		}
	}},
	{"Refusals are problem documents", func(t *testing.T) {
		g := newRig(t, nil, nil)
		if w := g.send(with("Idempotency-Key", "<script>alert(1)</script>,")); !strings.Contains(w.Body.String(), `"type":"`+idempotency.DocsURL+`#key-invalid"`) ||
			strings.Contains(w.Body.String(), "script") {
			t.Errorf("refused with %s", w.Body)
		}
		// Every type is a section of the documentation.
		page := testkit.ReadFile(t, "../docs/reference/http.md")
		source := testkit.ReadFile(t, "problem.go")
		names := regexp.MustCompile(`Name: "([a-z-]+)", Status: (\d+)`).FindAllStringSubmatch(string(source), -1)
		if len(names) < 15 {
			t.Fatalf("found only %d problems", len(names))
		}
		for _, m := range names {
			if !strings.Contains(string(page), "\n### "+m[1]+"\n\n"+m[2]) {
				t.Errorf("docs/reference/http.md has no section %q that begins with %s", m[1], m[2])
			}
		}
		w := httptest.NewRecorder()
		idempotency.WriteProblem(w, httptest.NewRequest("POST", "/", nil), idempotency.FailureProblem(idempotency.TimedOut))
		isProblem(t, w, "origin-timeout", 504)
	}},
	{"Refusals have the shape that the API chose", func(t *testing.T) {
		link := idempotency.DocsURL + "#"
		for _, c := range []struct {
			name                            string
			write                           idempotency.ProblemWriter
			contentType, mismatch, required string
		}{
			{
				"stripe", idempotency.WriteStripeError, "application/json",
				`{"error":{"type":"idempotency_error","code":"key_reused","message":"The Idempotency-Key was used for another request. `,
				`{"error":{"type":"invalid_request_error","code":"key_required","message":"An Idempotency-Key is required. `,
			},
			{
				"acp", idempotency.WriteACPError, "application/json",
				`{"type":"invalid_request","code":"idempotency_conflict","message":"`, `{"type":"invalid_request","code":"idempotency_key_required","message":"`,
			},
			{"ucp", idempotency.WriteUCPError, "application/json", `{"code":"key_reused","content":"`, `{"code":"key_required","content":"`},
			{
				"jsonapi", idempotency.WriteJSONAPIError, "application/vnd.api+json",
				`{"errors":[{"links":{"about":"` + link + `key-reused"},"status":"409","code":"key-reused","title":"The`,
				`{"errors":[{"links":{"about":"` + link + `key-required"},"status":"400","code":"key-required","title":"An`,
			},
		} {
			g := newRig(t, &idempotency.Options{WriteProblem: c.write, MismatchStatus: 409, RequireKey: true}, nil)
			g.send(withBody("1"))
			for want, w := range map[string]*httptest.ResponseRecorder{
				c.mismatch: g.send(withBody("2")), c.required: g.send(with("Idempotency-Key")),
			} {
				wantStatus := map[string]int{c.mismatch: 409, c.required: 400}[want]
				if w.Code != wantStatus || !strings.HasPrefix(w.Body.String(), want) || w.Header().Get("Content-Type") != c.contentType {
					t.Errorf("%s: %d %s, %s", c.name, w.Code, w.Header().Get("Content-Type"), w.Body)
				}
				if w.Header().Get("Retry-After") != "" || w.Header().Get("Cache-Control") != "no-store" {
					t.Errorf("%s: the header is %v", c.name, w.Header())
				}
			}
			w := httptest.NewRecorder()
			failed := idempotency.Problem{Name: "a-b", Status: 503, Title: "T", Instance: "urn:dibs:claim:1", RetryAfter: time.Millisecond}
			c.write(w, httptest.NewRequest("POST", "/", nil), failed)
			if w.Code != 503 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "urn:dibs:claim:1") {
				t.Errorf("%s: %d %v %s", c.name, w.Code, w.Header(), w.Body)
			}
			w = httptest.NewRecorder()
			r := httptest.NewRequest("POST", "/", nil)
			r.Header.Set("Content-Type", "application/grpc")
			if c.write(w, r, failed); w.Header().Get("Grpc-Status") != "14" {
				t.Errorf("%s: gRPC is answered %v", c.name, w.Header())
			}
		}
	}},
}
