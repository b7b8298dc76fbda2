package idempotency_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/journal"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

var keyRules = []rule{
	{"Safe methods pass", func(t *testing.T) {
		g := newRig(t, &idempotency.Options{RequireKey: true}, nil)
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE"} {
			for range 2 {
				isFresh(t, g.send(withMethod(method)), 201)
			}
			isFresh(t, g.send(withMethod(method), with("Idempotency-Key")), 201)
		}
		g.ran(12)
		events := g.seen()
		for _, e := range events {
			if e.Kind != idempotency.EventUnguarded {
				t.Errorf("observed %+v of a request that is not guarded", e)
			}
		}
		if len(events) != 12 {
			t.Errorf("observed %d requests, want 12", len(events))
		}
	}},
	{"An Upgrade does not bypass the guard", func(t *testing.T) {
		g := newRig(t, nil, nil)
		for i, offer := range [][]string{{"websocket"}, {"h2c", "websocket"}, {"websocket", "h2c"}, {"h2c, websocket"}, {"h2c"}} {
			key := withKey(string(rune('a' + i)))
			upgrade := []change{key, with("Connection", "keep-alive, Upgrade"), with("Upgrade", offer...)}
			first := g.send(upgrade...)
			isFresh(t, first, 201)
			isReplay(t, g.send(upgrade...), first)
			g.ran(int64(i + 1))
		}
		// Without a key, and with a safe method, the handler decides.
		for range 2 {
			isFresh(t, g.send(with("Idempotency-Key"), with("Connection", "Upgrade"), with("Upgrade", "websocket")), 201)
			isFresh(t, g.send(withMethod("GET"), with("Connection", "Upgrade"), with("Upgrade", "websocket")), 201)
		}
		g.ran(9)
	}},
	{"A method that overrides another counts", func(t *testing.T) {
		for i, name := range idempotency.OverrideFields() {
			g := newRig(t, &idempotency.Options{Methods: []string{"PUT"}}, nil)
			first := g.send(withMethod("GET"), with(name, " put"))
			isReplay(t, g.send(withMethod("GET"), with(name, " put")), first)
			isProblem(t, g.send(withMethod("PUT")), "key-reused", 422)
			isProblem(t, g.send(withMethod("PUT"), with(name, "DELETE")), "key-reused", 422)
			isFresh(t, g.send(withMethod("GET"), with(name, "HEAD")), 201)
			if g.ran(2); t.Failed() {
				t.Fatal(i, name)
			}
		}
		overrides(t)
	}},
	{"CONNECT is refused", func(t *testing.T) {
		g := newRig(t, nil, nil)
		isProblem(t, g.send(withMethod("CONNECT")), "method-refused", 405)
		g.ran(0)
	}},
	{"Every other method is guarded", func(t *testing.T) {
		g := newRig(t, nil, nil)
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "PROPPATCH", "get"} {
			before := g.runs.Load()
			first := g.send(withMethod(method), withKey(method))
			isFresh(t, first, 201)
			isReplay(t, g.send(withMethod(method), withKey(method)), first)
			g.ran(before + 1)
		}
		// The key reaches the handler as sent, and Connection does not take the
		// guard away.
		seen := ""
		plain := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { seen = r.Header.Get("Idempotency-Key") })
		first := plain.send(withKey(`"a";p`), with("Connection", "Idempotency-Key"))
		isReplay(t, plain.send(withKey(`"a";p`), with("Connection", "Idempotency-Key")), first)
		if seen != `"a";p` {
			t.Errorf("the handler saw the key %q", seen)
		}
		narrow := newRig(t, &idempotency.Options{Methods: []string{"POST"}}, nil)
		for range 2 {
			isFresh(t, narrow.send(withMethod("PUT")), 201)
			narrow.send()
		}
		narrow.ran(3)
	}},
	{"A key can be required", func(t *testing.T) {
		g := newRig(t, nil, nil)
		for range 2 {
			isFresh(t, g.send(with("Idempotency-Key")), 201)
		}
		g.ran(2)
		strict := newRig(t, &idempotency.Options{RequireKey: true}, nil)
		isProblem(t, strict.send(with("Idempotency-Key")), "key-required", 400)
		strict.ran(0)
		if e := strict.last(); e.Kind != idempotency.EventInvalid || e.Status != 400 {
			t.Errorf("observed %+v", e)
		}
	}},
	{"X-Idempotency-Key is accepted too", func(t *testing.T) {
		g := newRig(t, nil, nil)
		first := g.send(with("Idempotency-Key"), with("X-Idempotency-Key", "k"))
		isReplay(t, g.send(), first)
		isReplay(t, g.send(with("X-Idempotency-Key", "k")), first)
		isProblem(t, g.send(with("X-Idempotency-Key", "other")), "key-invalid", 400)
		isProblem(t, g.send(with("X-Idempotency-Key", "")), "key-invalid", 400)
		isProblem(t, g.send(with("Idempotency-Key"), with("X-Idempotency-Key", "a", "a")), "key-invalid", 400)
		g.ran(1)
	}},
	{"The key is a string", func(t *testing.T) {
		for value, want := range map[string]string{
			`"abc"`:                      "abc",
			`"a b"`:                      "a b",
			`" abc"`:                     " abc",
			`"a\"b\\c"`:                  `a"b\c`,
			`"a,b;c"`:                    "a,b;c",
			`  "abc"  `:                  "abc",
			`"abc";p`:                    "abc",
			`"abc"; p=1; q=-1.5;*r="x;"`: "abc",
			`"abc";p=?1;q=:aGk=:;r=@-17;s=tok/en:*;t=%"f%c3%bc"`: "abc",
			`"` + strings.Repeat("x", 255) + `"`:                 strings.Repeat("x", 255),
		} {
			for _, strict := range []bool{false, true} {
				if got, err := idempotency.ParseKey(value, strict); err != nil || got != want {
					t.Errorf("ParseKey(%q, %v) = %q, %v; want %q", value, strict, got, err, want)
				}
			}
		}
		g := newRig(t, nil, nil)
		g.send(withKey(`"a b"`))
		g.send(withKey(`"a  b"`))
		g.ran(2) // spaces within the quotes count
	}},
	{"A bare value is accepted", func(t *testing.T) {
		g := newRig(t, nil, nil)
		first := g.send(withKey(`8e03978e-40d5-43dd-bc93-6894a57f9324`))
		isReplay(t, g.send(withKey(`"8e03978e-40d5-43dd-bc93-6894a57f9324"`)), first)
		isReplay(t, g.send(with("Idempotency-Key"), with("X-Idempotency-Key", `8e03978e-40d5-43dd-bc93-6894a57f9324`)), first)
		g.ran(1)
		for _, value := range []string{"a", "'a'", "a=b:c/d?e", "?1", ":aGk=:", strings.Repeat("x", 255)} {
			if got, err := idempotency.ParseKey(value, false); err != nil || got != value {
				t.Errorf("ParseKey(%q) = %q, %v", value, got, err)
			}
			if _, err := idempotency.ParseKey(value, true); err == nil {
				t.Errorf("strict ParseKey(%q) accepts a bare value", value)
			}
		}
		strict := newRig(t, &idempotency.Options{StrictKey: true}, nil)
		isProblem(t, strict.send(withKey("abc")), "key-invalid", 400)
		isFresh(t, strict.send(withKey(`"abc"`)), 201)
	}},
	{"A malformed key is refused", func(t *testing.T) {
		g := newRig(t, nil, nil)
		for _, lines := range [][]string{
			{""}, {"  "}, {`""`}, {`"`}, {`"abc`}, {`abc"`}, {`a"b`}, {`"a"b"`}, {`"abc" x`}, {`"abc";`}, {`"abc";P`},
			{`"abc";p=`}, {`"abc";p=@1.5`}, {`"abc";p="`}, {`"abc";p=?2`}, {`"abc";p=:a`}, {`"abc";p=%"%C3"`},
			{`"abc";p=1234567890123456`}, {`"abc";p=1.2345`}, {`"abc";p=1.`},
			{`"a\b"`}, {`"a\`}, {"a b"}, {"a;p"}, {`a\b`}, {"a,b"}, {`"a", "b"`}, {`"a","a"`}, {"\"a\x7f\""}, {"\"a\tb\""}, {"a\x01"}, {"schlüssel"}, {`"schlüssel"`},
			{strings.Repeat("x", 256)}, {`"` + strings.Repeat("x", 256) + `"`},
			{"a", "b"}, {"a", "a"}, {`"a"`, ""},
		} {
			p := isProblem(t, g.send(with("Idempotency-Key", lines...)), "key-invalid", 400)
			for _, line := range lines {
				if len(line) > 3 && strings.Contains(p.Detail, line) {
					t.Errorf("the refusal of %q quotes it: %q", line, p.Detail)
				}
			}
		}
		g.ran(0)
	}},
	{"Webhooks have a preset for each sender", func(t *testing.T) {
		for sender, event := range eventsOfSenders {
			g := newRig(t, webhooks(t, sender), nil)
			event = append(event, with("Idempotency-Key"), with("Idempotency-Key", eventKey[sender]...))
			first := g.send(event...)
			isFresh(t, first, 201)
			isReplay(t, g.send(append(event, with("Authorization", "another"))...), first)
			g.ran(1)
		}
	}},
	{"Without a sender only headers name an event", func(t *testing.T) {
		headers := []string{"Webhook-Id", "Svix-Id", "X-GitHub-Delivery", "X-Shopify-Event-Id", "X-Razorpay-Event-Id", "Idempotency-Key"}
		g := newRig(t, webhooks(t, idempotency.AnySender), nil)
		for _, name := range headers {
			event := []change{with("Idempotency-Key"), with(name, "the same id")}
			first := g.send(event...)
			isFresh(t, first, 201) // another sender's event, although its id is the same
			isReplay(t, g.send(append(event, with("Authorization", "another"))...), first)
		}
		g.ran(int64(len(headers)))
	}},
	{"A key can be derived", func(t *testing.T) {
		g := newRig(t, &idempotency.Options{Key: idempotency.KeyJSON("/event/id"), RequireKey: true}, func(w http.ResponseWriter, r *http.Request) {
			text, err := io.ReadAll(r.Body)
			testkit.Check(t, err)
			_, _ = w.Write(text) // the body is whole
		})
		event := withBody(`{"event":{"id":"evt_1"}}`)
		first := g.send(event, with("Idempotency-Key", "ignored"))
		if first.Body.String() != `{"event":{"id":"evt_1"}}` {
			t.Errorf("the handler read %q", first.Body)
		}
		isReplay(t, g.send(event, with("Idempotency-Key", "x", "y")), first)
		g.ran(1)
		isProblem(t, g.send(withBody(`{"event":{}}`)), "key-required", 400)
		isProblem(t, g.send(withBody(`{"event":{"id":[[1]]}}`)), "key-invalid", 400)
		isProblem(t, g.send(withBody("{\"event\":{\"id\":\"a\u00fc\"}}")), "key-invalid", 400)
		isFresh(t, g.send(withBody(`{"event":{"id":12345678901234567890}}`)), 200)

		h := newRig(t, &idempotency.Options{Key: idempotency.KeyHeader("X-GitHub-Delivery")}, nil)
		first = h.send(with("X-GitHub-Delivery", "72d3162e-cc78"))
		isReplay(t, h.send(with("X-GitHub-Delivery", "72d3162e-cc78")), first)
		for range 2 {
			isFresh(t, h.send(), 201) // no key, not required
		}
		isProblem(t, h.send(with("X-GitHub-Delivery", "a", "b")), "key-invalid", 400)

		f := newRig(t, &idempotency.Options{Key: func(r *http.Request, _ io.ReadSeeker) (string, error) {
			return "", errors.New("secret " + r.Host)
		}}, nil)
		if p := isProblem(t, f.send(), "key-invalid", 400); strings.Contains(p.Detail, "secret") {
			t.Errorf("the refusal shows the function's error: %q", p.Detail)
		}
	}},
}

func TestKeyPart(t *testing.T) {
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
		lease, ok := leaseOf(r)
		if !ok {
			t.Error("no lease in the context")
			return
		}
		if key, ok := idempotency.KeyPart(lease.Key().Name); !ok || key != "k" {
			t.Errorf("KeyPart(%q) = %q, %v", lease.Key().Name, key, ok)
		}
	})
	g.send()
	g.ran(1)
	if key, ok := idempotency.KeyPart("mcp:aaaaaaaaaaaaaaaaaaaaaa:k:l"); key != "k:l" || !ok {
		t.Errorf("the key of a call is %q, %v", key, ok)
	}
	for _, name := range []string{"", "k", "http:", "mcp:", "mcp:short:k", "http:short:k", "lock:aaaaaaaaaaaaaaaaaaaaaa:k", "http:aaaaaaaaaaaaaaaaaaaaaa:"} {
		if key, ok := idempotency.KeyPart(name); ok {
			t.Errorf("KeyPart(%q) = %q", name, key)
		}
	}
}

func TestOptionsAreValidated(t *testing.T) {
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	j := journal.New(store)
	for field, o := range map[string]idempotency.Options{
		"Methods":                               {Methods: []string{"GET"}},
		"MaxBody":                               {MaxBody: -1},
		"MaxConcurrent":                         {MaxConcurrent: -1},
		"MaxBodyMemory: -1":                     {MaxBodyMemory: -1},
		"MaxBodyMemory: 2097151":                {MaxBodyMemory: 2<<20 - 1},
		"MaxStored":                             {MaxStored: -1},
		"Lease":                                 {Lease: 1},
		"Retention":                             {Retention: 2 * idempotency.MaxRetention},
		"Wait":                                  {Wait: -1},
		"ConflictStatus":                        {ConflictStatus: 200},
		"MismatchStatus":                        {MismatchStatus: 500},
		"KeyPer":                                {KeyPer: "?"},
		"KeyPer: principal":                     {KeyPer: idempotency.KeyPerPrincipal, Key: idempotency.KeyHeader("Id")},
		"KeyPer: request":                       {KeyPer: idempotency.KeyPerRequest, Fingerprint: idempotency.FingerprintOptions{KeyAlone: true}},
		"OnOversize":                            {OnOversize: "?"},
		"OnCrash":                               {OnCrash: "?"},
		"OnStoreFailure":                        {OnStoreFailure: "?"},
		"Commits":                               {Commits: func(int) bool { return true }},
		"OnCrash: AtMostOnce":                   {Transactor: j, OnCrash: idempotency.AtMostOnce},
		"OnStoreFailure: FailOpen":              {Transactor: j, OnStoreFailure: idempotency.FailOpen},
		"StoreTimeout":                          {StoreTimeout: -1},
		"HandlerLimit":                          {HandlerLimit: -1},
		"MCP.ToolWindows":                       {MCP: &idempotency.MCP{ToolWindows: map[string]time.Duration{"pay": 1}}, Key: idempotency.KeyHeader("Id")},
		"NotStored":                             {NotStored: []string{"a b"}},
		"Scope":                                 {Scope: []idempotency.ScopePart{idempotency.ScopeNone, idempotency.ScopeAuthorization}},
		"Scope: \"Content-Length\" describes":   {Scope: []idempotency.ScopePart{idempotency.ScopeHeader("Content-Length")}},
		"Scope: \"idempotency_key\" is the key": {Scope: []idempotency.ScopePart{idempotency.ScopeHeader("idempotency_key")}},
		"Methods: without POST":                 {MCP: new(idempotency.MCP), Key: idempotency.KeyHeader("Id"), Methods: []string{"PUT"}},
		"Keep":                                  {Keep: []string{"2x"}},
		"Fingerprint.Fields":                    {Fingerprint: idempotency.FingerprintOptions{Fields: []string{""}}},
	} {
		g := newRig(t, nil, nil)
		if _, err := idempotency.New(g.client, &o); err == nil || !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("%s: %v; it must name the field", field, err)
		} else if e, ok := errors.AsType[*idempotency.OptionError](err); !ok || !strings.HasPrefix(field+":", e.Field+":") {
			t.Errorf("%s: the error is %+v", field, e)
		}
	}
	if _, err := idempotency.New(nil, nil); err == nil {
		t.Error("New accepts a nil client")
	}
	defer func() {
		if fault := fmt.Sprint(recover()); !strings.Contains(fault, `KeyHeader: "content-length" describes`) {
			t.Errorf("KeyHeader panics with %s", fault)
		}
	}()
	idempotency.KeyHeader("content-length")
}

// TestValidate: Validate finds each field that is wrong, and has the facts for a text in other words.
func TestValidate(t *testing.T) {
	o := &idempotency.Options{Lease: 1, Keep: []string{"2x", "3x"}, MaxBodyMemory: 1}
	var got []string
	for _, err := range o.Validate().(interface{ Unwrap() []error }).Unwrap() {
		e := err.(*idempotency.OptionError)
		got = append(got, fmt.Sprint(e.Field, " ", e.With, " ", e.Value, " ", e.Least, " ", e.Most))
	}
	want := []string{
		"Keep  <nil> <nil> <nil>", "Keep  <nil> <nil> <nil>", "Lease  1ns 1s <nil>", "MaxBodyMemory MaxStored 1 2097152 <nil>",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	for _, right := range []*idempotency.Options{nil, {}} {
		if err := right.Validate(); err != nil {
			t.Errorf("%+v: %v", right, err)
		}
	}
}

// overrides: whatever a server could read as another method counts, and an answer to HEAD has no body,
// whatever length it says.
func overrides(t *testing.T) {
	t.Helper()
	spelled := func(name, value string) change { return func(r *http.Request) { r.Header[name] = []string{value} } }
	for _, test := range [][]change{
		{withMethod("HEAD"), with("X-HTTP-Method-Override", "POST")},
		{withMethod("HEAD"), spelled("X_http_method", "post")},
		{withMethod("GET"), spelled("x-method_override", "Delete")},
		{withMethod("GET"), withTarget("/charges?_method=post")},
		{withMethod("HEAD"), withTarget("/charges?%5Fmethod=PATCH")},
		{withMethod("POST"), with("X-HTTP-Method", "DELETE")},
		{withMethod("POST"), withTarget("/charges?_method=DELETE")},
	} {
		g := newRig(t, &idempotency.Options{Methods: []string{"POST", "PATCH", "DELETE"}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "2")
			w.WriteHeader(http.StatusCreated)
			if r.Method != http.MethodHead {
				_, _ = io.WriteString(w, "ok")
			}
		})
		server := httptest.NewServer(g.h)
		for i := range 3 {
			r := request(test...)
			r.URL.Host, r.URL.Scheme, r.RequestURI = strings.TrimPrefix(server.URL, "http://"), "http", ""
			res, err := server.Client().Do(r)
			testkit.Must(t, err)
			res.Body.Close()
			if replayed := res.Header.Get("Idempotent-Replayed"); res.StatusCode != http.StatusCreated || (replayed == "true") != (i > 0) {
				t.Errorf("%s %s with %v: request %d is answered %d, replayed %q", r.Method, r.URL, r.Header, i, res.StatusCode, replayed)
			}
			if n := res.ContentLength; r.Method == http.MethodHead && n == 0 {
				t.Errorf("the answer to HEAD has the length %d", n)
			}
		}
		g.ran(1)
		server.Close()
	}
	g := newRig(t, nil, nil)
	isFresh(t, g.send(withKey("other")), 201)
	for _, field := range []change{with("X-HTTP-Method", "DELETE"), spelled("X_Http_Method", "DELETE"), with("X-Method-Override", "POST")} {
		isProblem(t, g.send(withKey("other"), field), "key-reused", 422)
	}
	g.runs.Store(0)
	for _, target := range []string{"/charges?_method=GET", "/charges?method=POST", "/charges?x=_method=POST"} {
		isFresh(t, g.send(withMethod("GET"), withTarget(target)), 201)
		isFresh(t, g.send(withMethod("GET"), withTarget(target)), 201)
	}
	g.ran(6)
}
