package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// line is a line of a log in JSON.
type line map[string]any

// linesOf reads a log in JSON, and returns the lines with the message.
func linesOf(t *testing.T, text, message string) (found []line) {
	t.Helper()
	for raw := range strings.Lines(text) {
		var l line
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if l["msg"] == message {
			found = append(found, l)
		}
	}
	return found
}

// newServer returns a proxy over a store in memory, which is not served, and its log.
func newServer(t *testing.T, store dibs.Store, flags ...string) (*Server, *bytes.Buffer) {
	t.Helper()
	c, err := load(t, "", append([]string{"--upstream", "http://127.0.0.1:1", "--log-format", "json"}, flags...)...)
	testkit.Must(t, err)
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { client.Close() })
	log := new(bytes.Buffer)
	s, err := New(c, client, &Admin{Metrics: noMetrics, Observe: func(context.Context, idempotency.Event) {}, Store: store}, c.Logger(log))
	testkit.Must(t, err)
	return s, log
}

// inMemory returns a store in memory.
func inMemory(t *testing.T) *memstore.Store {
	t.Helper()
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	return store
}

// panics serves a request with a handler that panics.
func panics(t *testing.T, s *Server) {
	t.Helper()
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("the server gets the panic %v; want %v", p, http.ErrAbortHandler)
		}
	}()
	s.current.routes[0].handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a defect") })
	s.serve(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/broken", nil))
}

// TestLogFields: the lines of requests have the fields that docs/operate/incidents.md lists, and no
// others.
func TestLogFields(t *testing.T) {
	page := testkit.ReadFile(t, "../../../../docs/operate/incidents.md")
	_, table, ok := strings.Cut(string(page), "\n| field | what it is |\n|---|---|\n")
	if !ok {
		t.Fatal("the page has no table of fields")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	listed := map[string]bool{}
	for row := range strings.Lines(table) {
		names, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(names, -1) {
			listed[m[1]] = true
		}
	}
	s, log := newServer(t, inMemory(t))
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/charges", strings.NewReader("a"))
	r.Header.Set("Idempotency-Key", "k")
	s.serve(httptest.NewRecorder(), r) // the origin cannot be reached
	panics(t, s)
	logged := map[string]bool{}
	for _, l := range linesOf(t, log.String(), "request") {
		for name := range l {
			logged[name] = true
		}
	}
	if !maps.Equal(listed, logged) {
		t.Errorf("the log has %v; the page lists %v", slices.Sorted(maps.Keys(logged)), slices.Sorted(maps.Keys(listed)))
	}
}

// TestLogOfOneRun: a guarded request has one line, with its outcome and the time in
// milliseconds. No line names a key, a credential, a query or an answer.
func TestLogOfOneRun(t *testing.T) {
	up := origin(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "secret-cookie")
		w.WriteHeader(201)
		fmt.Fprint(w, "secret-answer")
	})
	p := start(t, up, "", "--log-format=json", "--scope=header:X-None")
	for range 2 {
		send(t, p.url, "POST /charges?token=secret-query HTTP/1.1\r\nHost: shop\r\nX-Request-Id: r1\r\nIdempotency-Key: secret-key\r\n"+
			"Authorization: secret-auth\r\nCookie: secret-cookie\r\nContent-Length: 11\r\n\r\nsecret-body")
	}
	p.stop()
	if strings.Contains(p.logs.String(), "secret") {
		t.Errorf("the log has a secret: %s", p.logs)
	}
	all := linesOf(t, p.logs.String(), "request")
	if len(all) != 2 {
		t.Fatalf("the log has %d lines; want one for each request: %s", len(all), p.logs)
	}
	for i, outcome := range []string{"ran", "replayed"} {
		l := all[i]
		for name, want := range map[string]any{
			"level": "INFO", "request_id": "r1", "method": "POST", "host": "shop", "path": "/charges", "proto": "HTTP/1.1",
			"status": 201.0, "bytes": 13.0, "outcome": outcome,
		} {
			if l[name] != want {
				t.Errorf("%s: %s is %v; want %v", outcome, name, l[name], want)
			}
		}
		if _, number := l["duration_ms"].(float64); !number || l["key"] == "" {
			t.Errorf("%s: the line is %v", outcome, l)
		}
		if stored := l["stored"] == true; stored != (i == 0) {
			t.Errorf("%s: stored is %v", outcome, l["stored"])
		}
	}
	if linesOf(t, p.logs.String(), "a request came without credentials: all requests without credentials share keys")[0]["scope"] != "header:X-None" {
		t.Errorf("the log does not name the scope: %s", p.logs)
	}
}

// TestRefusalsAreNamed: the line of a request that was refused has the name of the refusal, which
// is that of its problem document. No other line has one.
func TestRefusalsAreNamed(t *testing.T) {
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "max-body: 1KiB\nroutes:\n  - {path: /must, require-key: true}\n  - {path: /off, guard: false, upstream: 'http://127.0.0.1:1'}\n  - {path: /on, upstream: 'http://127.0.0.1:1'}\n", "--log-format=json", "--scope=none")
	ask := func(method, path, fields, body string) string {
		res, text := send(t, p.url, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s", method, path, fields, len(body), body))
		var problem struct{ Type string }
		if res.Header.Get("Content-Type") != "application/problem+json" {
			return ""
		}
		testkit.Must(t, json.Unmarshal([]byte(text), &problem))
		_, name, _ := strings.Cut(problem.Type, "#")
		return name
	}
	for i, test := range []struct{ method, path, fields, body, want string }{
		{"POST", "/a", "Idempotency-Key: a,b\r\n", "", "key-invalid"},
		{"POST", "/b", "Idempotency-Key: \r\n", "", "key-invalid"},
		{"POST", "/must", "", "", "key-required"},
		{"POST", "/d", "Idempotency-Key: d\r\n", strings.Repeat("x", 1025), "body-too-large"},
		{"CONNECT", "h:80", "", "", "method-refused"},
		{"GET", "//a|b", "", "", "target-refused"},
		{"POST", "/off", "", "", "origin-unreachable"},
		{"GET", "/on", "", "", "origin-unreachable"},
		{"POST", "/on", "Idempotency-Key: e\r\n", "", "origin-unreachable"},
		{"POST", "/fine", "Idempotency-Key: f\r\n", "", ""},
	} {
		if got := ask(test.method, test.path, test.fields, test.body); got != test.want {
			t.Errorf("%s %s: the answer is %q; want %q", test.method, test.path, got, test.want)
		}
		var all []line
		testkit.Eventually(t, "the line", func() bool {
			all = linesOf(t, p.logs.String(), "request")
			return len(all) > i
		})
		if name, _ := all[i]["problem"].(string); name != test.want {
			t.Errorf("%s %s: the line is %v; want the problem %q", test.method, test.path, all[i], test.want)
		}
	}
}

// TestLogLevel: lines below the level are left out. Without the access log, a request has a
// line only if the origin or the proxy failed.
func TestLogLevel(t *testing.T) {
	for _, test := range []struct {
		flags string
		want  []string // the levels and messages
	}{
		{"--log-level=debug", []string{"INFO scope", "DEBUG a request begins", "WARN request", "DEBUG a request begins", "INFO request", "DEBUG a request begins", "ERROR request"}},
		{"", []string{"INFO scope", "WARN request", "INFO request", "ERROR request"}},
		{"--access-log=false", []string{"INFO scope", "WARN request", "ERROR request"}},
		{"--log-level=warn", []string{"WARN request", "ERROR request"}},
		{"--log-level=error", []string{"ERROR request"}},
	} {
		s, log := newServer(t, inMemory(t), strings.Fields(test.flags)...)
		s.serve(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)) // the origin cannot be reached
		s.serve(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "CONNECT", "/", nil))
		panics(t, s)
		var got []string
		for raw := range strings.Lines(log.String()) {
			var l line
			testkit.Must(t, json.Unmarshal([]byte(raw), &l))
			message := l["msg"].(string)
			if l["scope"] != nil {
				message = "scope"
			}
			got = append(got, fmt.Sprint(l["level"], " ", message))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q; want %q", test.flags, got, test.want)
		}
	}
}

// TestLogOfPanic: a panic is one line, with the place of the panic.
func TestLogOfPanic(t *testing.T) {
	s, log := newServer(t, inMemory(t), "--access-log=false")
	panics(t, s)
	all := linesOf(t, log.String(), "request")
	if len(all) != 1 || all[0]["error"] != "a handler panicked: a defect" || !strings.Contains(all[0]["stack"].(string), "log_test.go") || all[0]["path"] != "/broken" {
		t.Errorf("the log is %s", log)
	}
}

// TestLogOfConnections: what net/http says of a connection is a line of the log.
func TestLogOfConnections(t *testing.T) {
	files := newPair(t)
	files.renew(t, 1)
	p := start(t, "http://127.0.0.1:1", "", files.flags("--log-format=json")...)
	_, answer := raw(t, strings.Replace(p.url, "https", "http", 1), "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := io.Copy(io.Discard, answer); err != nil {
		t.Fatal(err)
	}
	p.stop()
	found := 0
	for raw := range strings.Lines(p.logs.String()) {
		var l line
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Errorf("%q: %v", raw, err)
		}
		if strings.Contains(fmt.Sprint(l["msg"]), "TLS handshake error") && l["level"] == "WARN" {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d lines of the connection; want 1: %s", found, p.logs)
	}
}

// TestLogOfBrokenAnswer: the line of a request says that the origin's answer broke off, without
// what the origin sent.
func TestLogOfBrokenAnswer(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nsecret\r\n\r\n")
	for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
		p := start(t, o.url, "", "--log-format=json", "--log-level=warn", "--scope=none")
		_, answer := raw(t, p.url, "POST / HTTP/1.1\r\nHost: a\r\n"+key+"Content-Length: 0\r\nConnection: close\r\n\r\n")
		if _, err := io.Copy(io.Discard, answer); err != nil {
			t.Fatal(err)
		}
		p.stop()
		log := p.logs.String()
		all := linesOf(t, log, "request")
		if len(all) != 1 || all[0]["error"] != "the origin hung up: it did not speak HTTP as expected" || strings.Count(log, "\n") != 1 {
			t.Errorf("%q: the log is %s", key, log)
		}
	}
}

// TestLogOfFullDisk: a body that cannot be kept is an error in the proxy, and a store's file
// that is missing is not.
func TestLogOfFullDisk(t *testing.T) {
	full := &fs.PathError{Op: "write", Path: "body", Err: errors.New("no space")}
	for want, e := range map[string]idempotency.Event{
		"ERROR": {Kind: idempotency.EventUnavailable, Err: full},
		"INFO":  {Kind: idempotency.EventUnavailable, Err: full, Start: time.Now()},
	} {
		log := new(bytes.Buffer)
		x := newExchange(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", "/", nil))
		x.event = e
		func() { defer x.end(slog.New(slog.NewJSONHandler(log, nil)), true) }()
		if all := linesOf(t, log.String(), "request"); len(all) != 1 || all[0]["level"] != want {
			t.Errorf("%+v: %s; want %s", e, log, want)
		}
	}
}

// failing is a store that does not answer while away is true. A call takes a millisecond.
type failing struct {
	*memstore.Store
	away atomic.Bool
}

func (s *failing) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	time.Sleep(time.Millisecond)
	if s.away.Load() {
		return errors.New("the network is down")
	}
	return s.Store.Claim(ctx, claims, answers)
}

// outageCounts returns the number of requests in each line about the store.
func outageCounts(t *testing.T, log string) (fails, answers []int) {
	t.Helper()
	counts := func(message string, withError bool) (all []int) {
		for _, l := range linesOf(t, log, message) {
			if l["level"] != "WARN" || (l["error"] != nil) != withError {
				t.Errorf("the line is %v", l)
			}
			all = append(all, int(l["requests"].(float64)))
		}
		return all
	}
	return counts("the store fails", true), counts("the store answers again", false)
}

// TestStoreAwayIsALineAMinute: while the store does not answer, many requests leave one line
// a minute, with the number of requests, whether the access log is on or off. When it
// answers, there is one more line.
func TestStoreAwayIsALineAMinute(t *testing.T) {
	for _, access := range []bool{true, false} {
		t.Run(fmt.Sprintf("access-log %v", access), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &failing{Store: inMemory(t)}
				s, log := newServer(t, store, "--access-log="+strconv.FormatBool(access), "--store-timeout=1s")
				sent := 0
				post := func(want int) {
					r := httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader("a"))
					r.Header.Set("Idempotency-Key", "k")
					w := httptest.NewRecorder()
					s.serve(w, r)
					sent++
					if w.Code != want {
						t.Errorf("the answer is %d; want %d", w.Code, want)
					}
				}
				post(502) // the store answers, and there is no origin
				store.away.Store(true)
				began := time.Now()
				for time.Since(began) < 3*outage.Pause-20*time.Second {
					post(503)
					time.Sleep(time.Second)
				}
				failed := sent - 1
				store.away.Store(false)
				post(502)
				post(502)
				fails, answers := outageCounts(t, log.String())
				if len(fails) != 3 || fails[0] != 1 || len(answers) != 1 || fails[1]+fails[2]+answers[0] != failed-1 {
					t.Errorf("in three minutes %d requests failed; the lines count %d, and %d after that", failed, fails, answers)
				}
				all := linesOf(t, log.String(), "request")
				refused := slices.DeleteFunc(all, func(l line) bool { return l["level"] != "INFO" })
				if want := map[bool]int{true: failed}[access]; len(refused) != want {
					t.Errorf("%d lines of requests; want %d", len(refused), want)
				}
			})
		})
	}
}

// TestOutage: which requests say that the store fails, and which say that it answers.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		o := outage.New(slog.New(slog.NewJSONHandler(log, nil)), "requests")
		down := errors.New("down")
		event := func(outcome idempotency.EventKind, change func(*idempotency.Event)) idempotency.Event {
			time.Sleep(time.Second)
			e := idempotency.Event{Kind: outcome, Start: time.Now(), Claiming: time.Millisecond}
			if change != nil {
				change(&e)
			}
			return e
		}
		late := event(idempotency.EventRan, nil)
		for _, e := range []idempotency.Event{
			event(idempotency.EventRan, nil),
			event(idempotency.EventUnavailable, func(e *idempotency.Event) { e.Err, e.Start, e.Claiming = down, time.Time{}, 0 }), // no temporary file
			event(idempotency.EventLost, func(e *idempotency.Event) { e.Settling, e.Err = 1, dibs.ErrLost }),
			event(idempotency.EventRan, func(e *idempotency.Event) { e.Settling, e.Err = 1, dibs.ErrTooLarge }),
			event(idempotency.EventOverloaded, func(e *idempotency.Event) { e.Settling, e.Err = 1, errors.New("MaxBodyMemory is reached") }),
		} {
			noteStore(o, e)
		}
		if log.Len() > 0 {
			t.Errorf("the store answers; the log has %s", log)
		}
		noteStore(o, event(idempotency.EventRan, func(e *idempotency.Event) { e.Settling, e.Err, e.StoreFailed = 1, down, true }))
		noteStore(o, event(idempotency.EventBypassed, func(e *idempotency.Event) { e.Err = down }))
		noteStore(o, event(idempotency.EventRan, func(e *idempotency.Event) { e.Settling, e.Err = 1, down }))
		noteStore(o, late)
		noteStore(o, event(idempotency.EventConflict, func(e *idempotency.Event) { e.Claiming = 0 })) // answered in the process
		noteStore(o, event(idempotency.EventCanceled, nil))
		if fails, answers := outageCounts(t, log.String()); !slices.Equal(fails, []int{1}) || len(answers) > 0 {
			t.Errorf("the store is away; the log has %s", log)
		}
		for range 5 { // it fails and answers by turns
			noteStore(o, event(idempotency.EventReplayed, nil))
			noteStore(o, event(idempotency.EventUnavailable, func(e *idempotency.Event) { e.Err = down }))
		}
		if fails, answers := outageCounts(t, log.String()); len(fails) != 1 || !slices.Equal(answers, []int{2}) {
			t.Errorf("by turns: the log has %s", log)
		}
	})
}
