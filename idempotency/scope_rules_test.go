package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func leaseOf(r *http.Request) (*dibs.Lease, bool) { return dibs.FromContext(r.Context()) }

// compressed makes a body one that was compressed with gzip at that time.
func compressed(t *testing.T, text string, at time.Time) []change {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.ModTime = at
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, w.Close())
	return []change{with("Content-Encoding", "gzip"), withBody(b.String())}
}

var scopeRules = []rule{
	{"A key belongs to a principal", func(t *testing.T) {
		g := newRig(t, &idempotency.Options{Scope: []idempotency.ScopePart{idempotency.ScopeCredentials, idempotency.ScopeCookie("sid")}}, nil)
		// A field's name as net/http has it, and one that some servers read alike.
		spelled := func(name, value string) change {
			return func(r *http.Request) { r.Header[name] = []string{value} }
		}
		principals := [][]change{
			{},
			{with("Authorization", "Bearer a")},
			{with("Authorization", "Bearer b")},
			{with("Cookie", "sid=Bearer a")}, // a cookie is not an Authorization
			{with("Cookie", "sid=2; theme=dark")},
			{with("Authorization", "Bearer a"), with("Cookie", "sid=2")},
			{with("Cookie", `sid={"user":1}`)}, // which net/http does not take for a cookie
			{with("Cookie", `sid={"user":2}`)},
			{with("Cookie", `sid="a\0731"`)},
			{with("Cookie", `sid="a\0732"`)},
			{with("Cookie", "sid=\xe9")},
			{with("Cookie", "theme=dark;sid = \xe8")},
			{with("X-Api-Key", "a")},
			{with("X-Api-Key", "b")},
			{with("X-Api-Key", "a", "b")},
			{spelled("X_api_key", "a")},
			{spelled("X_api_key", "a"), with("X-Api-Key", "b")},
			{spelled("X_api_key", "b"), with("X-Api-Key", "a")},
			{with("X-Auth-Token", "a")},
			{with("X-Api-Key", "a"), with("Authorization", "Bearer a")},
		}
		for i, p := range principals {
			// With another body, because no principal learns that others use the key.
			isFresh(t, g.send(append(p, withBody(strings.Repeat("x", i)))...), 201)
		}
		for i, p := range principals {
			w := g.send(append(p, withBody(strings.Repeat("x", i)))...)
			if w.Code != 201 || w.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("principal %d has no replay: %d", i, w.Code)
			}
		}
		g.ran(int64(len(principals)))
		if w := g.send(with("Cookie", "sid=2; theme=light"), withBody("xxxx")); w.Header().Get("Idempotent-Replayed") != "true" {
			t.Error("another cookie than the session's counts")
		}
	}},
	{"Every credential header tells principals apart", func(t *testing.T) {
		g := newRig(t, nil, nil)
		for _, name := range idempotency.CredentialHeaders() {
			names := []string{name}
			if ending, any := strings.CutPrefix(name, "*-"); any {
				names = []string{ending, "X-" + ending, "DD_" + strings.ReplaceAll(ending, "-", "_"), "x-hub-" + strings.ToUpper(ending)}
			}
			for _, name := range names {
				isFresh(t, g.send(with(name, "one")), 201)
				isFresh(t, g.send(with(name, "two")), 201)
			}
		}
		page := testkit.ReadFile(t, "../docs/reference/http.md")
		for _, name := range idempotency.CredentialHeaders() {
			if !strings.Contains(string(page), "`"+http.CanonicalHeaderKey(name)+"`") {
				t.Errorf("docs/reference/http.md does not name %s", http.CanonicalHeaderKey(name))
			}
		}
	}},
	{"The scope can be changed", func(t *testing.T) {
		one := []change{with("X-Account", "one"), with("X-Org", "one"), with("Cookie", "sid=one"), with("Authorization", "one")}
		account, org, cookie := idempotency.ScopeHeader("x-account"), idempotency.ScopeHeader("X-Org"), idempotency.ScopeCookie("sid")
		first := idempotency.ScopeFunc("first letter", func(r *http.Request) string { return r.Header.Get("X-Account")[:1] })
		for name, test := range map[string]struct {
			scope     []idempotency.ScopePart
			same, not []change // with regard to the request of "one"
		}{
			"header": {[]idempotency.ScopePart{account},
				[]change{with("Authorization", "other"), with("Cookie", "sid=2")}, []change{with("X-Account", "two"), with("X-Account"), with("X-Account", "one", "two")}},
			"cookie": {[]idempotency.ScopePart{cookie},
				[]change{with("Authorization", "other"), with("X-Account", "two"), with("Cookie", "a=b; sid=one")}, []change{with("Cookie", "sid=two"), with("Cookie")}},
			"authorization": {[]idempotency.ScopePart{idempotency.ScopeAuthorization},
				[]change{with("X-Account", "two"), with("Cookie", "sid=two"), with("X-Api-Key", "two")}, []change{with("Authorization", "two"), with("Authorization")}},
			"several parts": {[]idempotency.ScopePart{idempotency.ScopeAuthorization, org},
				[]change{with("X-Account", "two")}, []change{with("Authorization", "two"), with("X-Org", "two"), with("X-Org"), with("Authorization")}},
			"parts of one value": {[]idempotency.ScopePart{org, account},
				nil, []change{with("X-Org"), with("X-Account")}},
			"function": {[]idempotency.ScopePart{first},
				[]change{with("X-Account", "other"), with("Authorization", "two")}, []change{with("X-Account", "two")}},
			"none": {[]idempotency.ScopePart{idempotency.ScopeNone},
				[]change{with("X-Account"), with("Cookie", "sid=two"), with("Authorization", "two")}, []change{withHost("other.example")}},
		} {
			g := newRig(t, &idempotency.Options{Scope: test.scope}, nil)
			first := g.send(one...)
			for _, c := range test.same {
				isReplay(t, g.send(append(one[:len(one):len(one)], c)...), first)
			}
			for i, c := range test.not {
				if w := g.send(append(one[:len(one):len(one)], c)...); w.Header().Get("Idempotent-Replayed") != "" {
					t.Errorf("%s: change %d makes no other principal", name, i)
				}
			}
		}
	}},
	{"An answer that replaces a part of the scope is logged once", func(t *testing.T) {
		sid, credentials := idempotency.ScopeCookie("sid"), idempotency.ScopeCredentials
		for name, test := range map[string]struct {
			scope    idempotency.ScopePart
			had      change
			set      [2]string // a field of each answer
			unkeyed  bool      // the answers are those to GET
			replaced bool
		}{
			"a session in its cookie":      {sid, with("Cookie", "sid=a"), [2]string{"Set-Cookie", "sid=b; Path=/; HttpOnly"}, false, true},
			"and in the answer to a GET":   {sid, with("Cookie", "a=b; sid=a"), [2]string{"Set-Cookie", "sid=b"}, true, true},
			"a signature with quotes":      {sid, with("Cookie", `sid="a"`), [2]string{"Set-Cookie", `sid="b"`}, false, true},
			"a new session":                {sid, with("X-Any", "a"), [2]string{"Set-Cookie", "sid=b"}, false, true},
			"a new session by a GET":       {sid, with("X-Any", "a"), [2]string{"Set-Cookie", "sid=b"}, true, false},
			"the same ID, for longer":      {sid, with("Cookie", "sid=a"), [2]string{"Set-Cookie", "sid=a; Max-Age=600"}, false, false},
			"another cookie":               {sid, with("Cookie", "sid=a"), [2]string{"Set-Cookie", "csrf=b"}, false, false},
			"a logout":                     {sid, with("Cookie", "sid=a"), [2]string{"Set-Cookie", "sid=; Max-Age=0"}, false, false},
			"a logout that keeps a value":  {sid, with("Cookie", "sid=a"), [2]string{"Set-Cookie", "sid=gone; Expires=Thu, 01 Jan 1970 00:00:00 GMT"}, false, false},
			"a cookie that is not a part":  {credentials, with("Cookie", "sid=a"), [2]string{"Set-Cookie", "sid=b"}, false, false},
			"a token of each answer":       {credentials, with("Access-Token", "a"), [2]string{"Access-Token", "b"}, false, true},
			"a token of a header":          {idempotency.ScopeHeader("X-Ticket"), with("X-Ticket", "a"), [2]string{"X-Ticket", "b"}, false, true},
			"a new Authorization":          {idempotency.ScopeAuthorization, with("Authorization", "Bearer a"), [2]string{"Authorization", "Bearer b"}, true, true},
			"the same token":               {credentials, with("Access-Token", "a"), [2]string{"Access-Token", "a"}, false, false},
			"a field that is not a part":   {credentials, with("X-Trace", "a"), [2]string{"X-Trace", "b"}, false, false},
			"a header for the first time":  {credentials, with("X-Any", "a"), [2]string{"Access-Token", "b"}, false, false},
			"a part of another kind, same": {idempotency.ScopeFunc("user", func(*http.Request) string { return "u" }), with("Cookie", "sid=a"), [2]string{"Set-Cookie", "sid=b"}, false, false},
		} {
			log, logger := newLogger()
			g := newRig(t, &idempotency.Options{Scope: []idempotency.ScopePart{test.scope}, Logger: logger}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(test.set[0], test.set[1])
				_, _ = w.Write([]byte("answer"))
			})
			method := withMethod("POST")
			if test.unkeyed {
				method = withMethod("GET")
			}
			for _, key := range []string{"1", "2"} {
				g.send(test.had, method, withKey(key))
			}
			want := 0
			if test.replaced {
				want = 1
			}
			if n := strings.Count(log.String(), "retries will not be recognised"); n != want || strings.Contains(log.String(), "sid=b") {
				t.Errorf("%s: the log is\n%s", name, log)
			}
		}
		// The retry with the new cookie is another principal: it gets no other's answer, and runs.
		g := newRig(t, &idempotency.Options{Scope: []idempotency.ScopePart{sid}, KeepSetCookie: true}, nil)
		first := g.send(with("Cookie", "sid=a"))
		isFresh(t, g.send(with("Cookie", "sid=b")), 201)
		isReplay(t, g.send(with("Cookie", "sid=a")), first)
	}},
	{"A scope that cannot work is logged once", func(t *testing.T) {
		const anonymous, changing = "requests without credentials share keys", "retries will not be recognised"
		for name, test := range map[string]struct {
			scope idempotency.ScopePart
			sent  change
			says  string
		}{
			"no credential":           {idempotency.ScopeCredentials, with("X-Org", "one"), anonymous},
			"no such header":          {idempotency.ScopeHeader("X-User"), with("Authorization", "Bearer a"), anonymous},
			"Digest":                  {idempotency.ScopeCredentials, with("Authorization", `Digest username="a", nc=00000001`), changing},
			"AWS4":                    {idempotency.ScopeAuthorization, with("Authorization", "AWS4-HMAC-SHA256 Credential=a"), changing},
			"a vendor's HMAC":         {idempotency.ScopeCredentials, with("Authorization", "EG1-HMAC-SHA256 client_token=a"), changing},
			"GOOG4":                   {idempotency.ScopeCredentials, with("Authorization", "GOOG4-RSA-SHA256 Credential=a"), changing},
			"a tab":                   {idempotency.ScopeCredentials, with("Authorization", "Digest\tusername=\"a\""), changing},
			"OAuth 1":                 {idempotency.ScopeCredentials, with("Authorization", `OAuth oauth_nonce="1"`), changing},
			"OAuth 1, not looked at":  {idempotency.ScopeHeader("X-Org"), func(r *http.Request) { with("Authorization", "OAuth a")(r); with("X-Org", "one")(r) }, ""},
			"Bearer":                  {idempotency.ScopeCredentials, with("Authorization", "Bearer a"), ""},
			"none":                    {idempotency.ScopeNone, with("X-Org", "one"), ""},
			"a credential of its own": {idempotency.ScopeCredentials, with("X-Api-Key", "a"), ""},
		} {
			log, logger := newLogger()
			g := newRig(t, &idempotency.Options{Scope: []idempotency.ScopePart{test.scope}, Logger: logger}, nil)
			g.send(test.sent)
			g.send(test.sent)
			want := 1
			if test.says == "" {
				want = 0
			}
			if n := strings.Count(log.String(), "\n"); n != want || !strings.Contains(log.String(), test.says) {
				t.Errorf("%s: %d lines in the log, want %d with %q:\n%s", name, n, want, test.says, log.String())
			}
		}
	}},
	{"The authority is part of the scope", func(t *testing.T) {
		g := newRig(t, nil, nil)
		first := g.send(withHost("a.example"))
		isFresh(t, g.send(withHost("b.example")), 201)
		eighty := g.send(withHost("a.example:8080"))
		isFresh(t, eighty, 201)
		for _, same := range []string{"A.Example", "a.example:80", "a.example:443", "a.example.", "a.example.:80", "a.example:"} {
			isReplay(t, g.send(withHost(same)), first)
		}
		isReplay(t, g.send(withHost("A.example.:8080")), eighty)
		six := g.send(withHost("[::1]"))
		isFresh(t, six, 201)
		isReplay(t, g.send(withHost("[::1]:80")), six)
		isFresh(t, g.send(withHost("[::1]:81")), 201)
		g.ran(5)
	}},
	{"The fingerprint tells requests apart", func(t *testing.T) {
		g := newRig(t, nil, nil)
		base := []change{withTarget("/charges?a=1&b=2"), withBody("body")}
		first := g.send(base...)
		for name, c := range map[string]change{
			"method":           withMethod("PUT"),
			"path":             withTarget("/charge?a=1&b=2"),
			"encoded path":     withTarget("/%63harges?a=1&b=2"),
			"slashes":          withTarget("//charges?a=1&b=2"),
			"query":            withTarget("/charges?a=1&b=3"),
			"query order":      withTarget("/charges?b=2&a=1"),
			"no query":         withTarget("/charges"),
			"content type":     with("Content-Type", "text/plain"),
			"no content type":  with("Content-Type"),
			"content encoding": with("Content-Encoding", "identity"),
			"body":             withBody("Body"),
			"longer body":      withBody("body "),
			"no body":          withBody(""),
		} {
			if w := g.send(append(base[:2:2], c)...); w.Code != 422 {
				t.Errorf("another %s: status %d", name, w.Code)
			}
		}
		isReplay(t, g.send(append(base[:2:2], with("User-Agent", "other"))...), first)
		isReplay(t, g.send(append(base[:2:2], withTarget("http://example.com/charges?a=1&b=2"))...), first)
		// Whatever the framing: here the length is not known ahead.
		isReplay(t, g.send(append(base[:2:2], func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("bo"), strings.NewReader("dy"))), -1
		})...), first)
		g.ran(1)
	}},
	{"A key can count for one path", func(t *testing.T) {
		g := newRig(t, &idempotency.Options{KeyPer: idempotency.KeyPerPath}, nil)
		first := g.send(withTarget("/a?x=1"))
		g.send(withTarget("/b?x=1"))
		g.ran(2)
		isReplay(t, g.send(withTarget("/a?x=1")), first)
		isProblem(t, g.send(withTarget("/a?x=2")), "key-reused", 422)
		isProblem(t, g.send(withTarget("/a?x=1"), withBody("other")), "key-reused", 422)
		g.ran(2)
	}},
	{"A key can serve many requests", func(t *testing.T) {
		const uploads = 40
		g := newRig(t, &idempotency.Options{KeyPer: idempotency.KeyPerRequest, Wait: time.Minute}, nil)
		other := newRigOn(t, g.store, &idempotency.Options{KeyPer: idempotency.KeyPerRequest, Wait: time.Minute}, nil)
		part := func(i int) []change {
			return []change{withTarget("/parts/" + strconv.Itoa(i%8)), withBody(strconv.Itoa(i))}
		}
		answers := make([]*httptest.ResponseRecorder, uploads)
		var group sync.WaitGroup
		for i := range uploads {
			group.Go(func() { answers[i] = g.send(part(i)...) })
			group.Go(func() { other.send(part(i)...) })
		}
		group.Wait()
		if n := g.runs.Load() + other.runs.Load(); n != uploads {
			t.Fatalf("%d requests ran %d times", uploads, n)
		}
		for i, first := range answers {
			again := other.send(part(i)...)
			if again.Body.String() != first.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("the retry of part %d got %v %q", i, again.Header(), again.Body)
			}
		}
		// What is given up: a retry that is not the same request runs.
		g.send(withTarget("/parts/0"), withBody("changed"))
		g.send(append(part(0), withMethod("PUT"))...)
		g.send(append(part(0), with("Authorization", "another"))...)
		if n := g.runs.Load() + other.runs.Load(); n != uploads+3 {
			t.Errorf("ran %d times; want %d", n, uploads+3)
		}
	}},
	{"The fingerprint can be looser", func(t *testing.T) {
		type pair struct {
			name    string
			o       idempotency.FingerprintOptions
			a, b    []change
			differs bool
		}
		form := with("Content-Type", "application/x-www-form-urlencoded")
		part := func(boundary, content string) []change {
			var b bytes.Buffer
			w := multipart.NewWriter(&b)
			testkit.Must(t, w.SetBoundary(boundary))
			testkit.Must(t, w.WriteField("file", content))
			_ = w.Close()
			return []change{with("Content-Type", w.FormDataContentType()), withBody(b.String())}
		}
		canonical := idempotency.FingerprintOptions{CanonicalJSON: true}
		fields := idempotency.FingerprintOptions{Fields: []string{"amount", "/to/iban"}}
		nested := func(depth int, text string) []change {
			return []change{withBody(strings.Repeat("[", depth) + text + strings.Repeat("]", depth))}
		}
		for _, p := range []pair{
			{"query order", idempotency.FingerprintOptions{SortQuery: true}, []change{withTarget("/c?a=1&b=2&a=3")}, []change{withTarget("/c?b=2&a=1&a=3")}, false},
			{"query values' order", idempotency.FingerprintOptions{SortQuery: true}, []change{withTarget("/c?a=1&a=3")}, []change{withTarget("/c?a=3&a=1")}, true},
			{"JSON order and space", canonical, []change{withBody(`{"a":1,"b":["x",null,true]}`)}, []change{withBody("{ \"b\": [\"\\u0078\", null, true],\n\"a\": 1}")}, false},
			{"JSON compressed at another time", canonical, compressed(t, `{"a":1}`, time.Unix(1, 0)), compressed(t, `{ "a": 1}`, time.Unix(2, 0)), false},
			{"JSON compressed or not", canonical, compressed(t, `{"a":1}`, time.Unix(1, 0)), []change{withBody(`{"a":1}`)}, false},
			{"JSON compressed, another", canonical, compressed(t, `{"a":1}`, time.Unix(1, 0)), compressed(t, `{"a":2}`, time.Unix(1, 0)), true},
			{"fields of JSON compressed", fields, compressed(t, `{"amount":1,"b":2}`, time.Unix(1, 0)), compressed(t, `{"amount":1,"b":3}`, time.Unix(2, 0)), false},
			{"bytes compressed at another time", idempotency.FingerprintOptions{}, compressed(t, `{"a":1}`, time.Unix(1, 0)), compressed(t, `{"a":1}`, time.Unix(2, 0)), true},
			{"JSON compressed in an unknown way", canonical, []change{with("Content-Encoding", "br"), withBody(`{"a":1}`)}, []change{with("Content-Encoding", "br"), withBody(`{"a": 1}`)}, true},
			{"JSON values", canonical, []change{withBody(`{"a":1}`)}, []change{withBody(`{"a":"1"}`)}, true},
			{"JSON numbers are not rounded", canonical, []change{withBody(`{"a":9007199254740993}`)}, []change{withBody(`{"a":9007199254740992}`)}, true},
			{"JSON numbers by value", canonical, []change{withBody(`[1.0,10e-1,0.10E+1,-0,0e9,-12,100]`)}, []change{withBody(`[1,1,1,0,0.00,-1.2e1,1E2]`)}, false},
			{"JSON numbers by sign", canonical, []change{withBody(`[1]`)}, []change{withBody(`[-1]`)}, true},
			{"JSON numbers by power", canonical, []change{withBody(`[1]`)}, []change{withBody(`[10]`)}, true},
			{"JSON numbers beyond any power", canonical, []change{withBody(`[1e99999999999999999999]`)}, []change{withBody(`[1e99999999999999999998]`)}, true},
			{"JSON twice a member", canonical, []change{withBody(`{"a":1,"a":2}`)}, []change{withBody(`{"a":2}`)}, true},
			{"JSON twice a member, swapped", canonical, []change{withBody(`{"a":1,"a":2}`)}, []change{withBody(`{"a":2,"a":1}`)}, true},
			{"JSON half a character", canonical, []change{withBody(`{"a":"\ud800"}`)}, []change{withBody(`{"a":"\ud801"}`)}, true},
			{"JSON nested", canonical, nested(100, "1"), nested(100, " 1"), false},
			{"JSON nested too deep", canonical, nested(101, "1"), nested(101, " 1"), true},
			{"JSON of another type", canonical, []change{with("Content-Type", "application/problem+json"), withBody(`{"a": 1}`)}, []change{with("Content-Type", "application/problem+json"), withBody(`{"a":1}`)}, false},
			{"not JSON by type", canonical, []change{with("Content-Type", "text/plain"), withBody(`{"a": 1}`)}, []change{with("Content-Type", "text/plain"), withBody(`{"a":1}`)}, true},
			{"encoded JSON", canonical, []change{with("Content-Encoding", "x"), withBody(`{"a": 1}`)}, []change{with("Content-Encoding", "x"), withBody(`{"a":1}`)}, true},
			{"multipart boundary", idempotency.FingerprintOptions{Multipart: true}, part("one", "x"), part("two", "x"), false},
			{"multipart content", idempotency.FingerprintOptions{Multipart: true}, part("one", "x"), part("one", "y"), true},
			{"multipart by default", idempotency.FingerprintOptions{}, part("one", "x"), part("two", "x"), true},
			{"chosen fields", fields, []change{withBody(`{"amount":1,"to":{"iban":"x","bic":"1"},"at":"now"}`)}, []change{withBody(`{"amount":1,"to":{"iban":"x"},"at":"then"}`)}, false},
			{"chosen field", fields, []change{withBody(`{"amount":1,"to":{"iban":"x"}}`)}, []change{withBody(`{"amount":1,"to":{"iban":"y"}}`)}, true},
			{"chosen field missing", fields, []change{withBody(`{"amount":null}`)}, []change{withBody(`{}`)}, true},
			{"chosen form fields", fields, []change{form, withBody("amount=1&at=now")}, []change{form, withBody("at=then&amount=1")}, false},
			{"chosen form field", fields, []change{form, withBody("amount=1")}, []change{form, withBody("amount=1&amount=2")}, true},
			{"function", idempotency.FingerprintOptions{Func: func(r *http.Request, body io.ReadSeeker) (dibs.Fingerprint, error) {
				return dibs.Fingerprint{1}, nil
			}}, []change{withBody("a")}, []change{withBody("b")}, false},
		} {
			g := newRig(t, &idempotency.Options{Fingerprint: p.o}, nil)
			first := g.send(p.a...)
			w := g.send(p.b...)
			switch {
			case p.differs && w.Code != 422:
				t.Errorf("%s: status %d; want 422", p.name, w.Code)
			case !p.differs:
				isReplay(t, w, first)
			}
		}
	}},
	{"Another request under the same key is refused", func(t *testing.T) {
		g := newRig(t, nil, nil)
		first := g.send()
		isProblem(t, g.send(withBody("other")), "key-reused", 422)
		isReplay(t, g.send(), first)
		g.ran(1)

		// Even while the first one runs: in this process, and elsewhere.
		other := newRigOn(t, g.store, nil, nil)
		var run *rig
		run = newRigOn(t, g.store, &idempotency.Options{Wait: 1 << 40}, func(w http.ResponseWriter, r *http.Request) {
			isProblem(t, run.send(withKey("running"), withBody("other")), "key-reused", 422)
			isProblem(t, other.send(withKey("running"), withBody("other")), "key-reused", 422)
		})
		isFresh(t, run.send(withKey("running")), 200)
		run.ran(1)
		other.ran(0)
	}},
	{"A body is read whole before anything runs", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		files := func() int {
			entries, err := os.ReadDir(dir)
			testkit.Must(t, err)
			return len(entries)
		}
		const limit = 4000
		g := newRig(t, idempotency.Options{MaxBody: limit}.InMemory(1000), func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(w, r.Body); err != nil {
				t.Error(err)
			}
		})
		for _, n := range []int{0, 1, 999, 1000, 1001, limit} {
			for _, known := range []bool{true, false} {
				text := strings.Repeat("0123456789", n/10+1)[:n]
				w := g.send(withKey("size-"+strconv.Itoa(n)), withBody(text), func(r *http.Request) {
					if !known {
						r.ContentLength = -1
					}
				})
				if w.Body.String() != text {
					t.Errorf("%d bytes: the handler read %d bytes: %d", n, w.Body.Len(), w.Code)
				}
			}
		}
		ran := g.runs.Load()
		for _, known := range []int64{-1, limit + 1} {
			p := isProblem(t, g.send(withKey("long"), withBody(strings.Repeat("x", limit+1)), func(r *http.Request) { r.ContentLength = known }), "body-too-large", 413)
			if want := fmt.Sprintf("at most %d bytes", limit); !strings.Contains(p.Detail, want) {
				t.Errorf("the detail is %q; want %q in it", p.Detail, want)
			}
		}
		g.ran(ran)
		// Requests without a key have no limit.
		if w := g.send(with("Idempotency-Key"), withBody(strings.Repeat("x", 2*limit))); w.Body.Len() != 2*limit {
			t.Errorf("an unguarded body of %d bytes arrived as %d", 2*limit, w.Body.Len())
		}
		if n := files(); n != 0 {
			t.Errorf("%d temporary files are left", n)
		}
		// A body that breaks off runs nothing.
		ran = g.runs.Load()
		isProblem(t, g.send(withKey("broken"), func(r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("half"), errReader{}))
			r.ContentLength = -1
		}), "body-unreadable", 400)
		g.ran(ran)
		t.Setenv("TMPDIR", dir+"/none")
		nowhere := newRig(t, idempotency.Options{}.InMemory(1), nil)
		isProblem(t, nowhere.send(), "no-room", 503)
		nowhere.ran(0)
	}},
	{"Trailers of the request reach the handler", func(t *testing.T) {
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Got", r.Trailer.Get("X-Sum"))
		})
		server := httptest.NewServer(g.h)
		defer server.Close()
		for i, sum := range []string{"one", "two"} {
			r := testkit.Request(t.Context(), t, http.MethodPost, server.URL, io.MultiReader(strings.NewReader("body")))
			r.Header.Set("Idempotency-Key", "k")
			r.Trailer = http.Header{"X-Sum": {sum}}
			res, err := server.Client().Do(r)
			testkit.Must(t, err)
			_ = res.Body.Close()
			if got := res.Header.Get("X-Got"); got != "one" {
				t.Errorf("request %d: the trailer arrived as %q; the fingerprint must not cover it", i, got)
			}
		}
		g.ran(1)
	}},
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
