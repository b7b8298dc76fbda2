package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// bomb compresses a body of n bytes or a little more, made of copies of a part. Between two copies
// is a separator.
func bomb(t *testing.T, encoding, head, part, separator, tail string, n int) []change {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if encoding == "deflate" {
		w = zlib.NewWriter(&b)
	}
	text := head + strings.Repeat(part+separator, (n-len(head)-len(tail))/len(part+separator)) + part + tail
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, w.Close())
	return []change{with("Content-Encoding", encoding), withBody(b.String())}
}

// allocated returns how many bytes f allocates, whether or not they are freed.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// members returns a JSON object with n members.
func members(n int) string {
	var b strings.Builder
	b.WriteString(`{"id":"a"`)
	for i := range n {
		b.WriteString(`,"` + strconv.Itoa(i) + `":0`)
	}
	b.WriteString("}")
	return b.String()
}

// TestWhatABodyBecomesIsBounded: a small compressed body costs little, whatever it holds: all that
// is allocated for it is bounded, and nothing is looked into that holds more than 256 KiB.
func TestWhatABodyBecomesIsBounded(t *testing.T) {
	const most = 8 << 20 // for 256 KiB of content
	multipart := with("Content-Type", "multipart/form-data; boundary=b")
	keyed := func(key idempotency.KeyFunc) *idempotency.Options { return &idempotency.Options{Key: key} }
	for name, test := range map[string]struct {
		options *idempotency.Options
		request []change
	}{
		"key, numbers":       {keyed(idempotency.KeyJSON("id")), bomb(t, "gzip", `{"id":"a","b":[`, "0", ",", "]}", 8<<20)},
		"key, array":         {keyed(idempotency.KeyJSON("id")), bomb(t, "gzip", `[`, "0", ",", "]", 8<<20)},
		"key, deflate":       {keyed(idempotency.KeyJSON("id")), bomb(t, "deflate", `{"id":"a","b":[`, "0", ",", "]}", 8<<20)},
		"key, at the limit":  {keyed(idempotency.KeyJSON("id")), bomb(t, "gzip", `{"id":"a","b":[`, "{}", ",", "]}", 256<<10-8)},
		"key, many values":   {keyed(idempotency.KeyJSON("id")), bomb(t, "gzip", `{"id":[`, "0", ",", "]}", 256<<10-8)},
		"key, nested":        {keyed(idempotency.KeyJSON("id")), bomb(t, "gzip", `{"id":"a","b":`, "[", "", "", 256<<10-8)},
		"key, form":          {keyed(idempotency.KeyForm("id")), append(bomb(t, "gzip", "id=a&", "b", "&", "", 256<<10-8), asForm)},
		"key, long form":     {keyed(idempotency.KeyForm("id")), append(bomb(t, "gzip", "id=a&", "b", "&", "", 8<<20), asForm)},
		"a sender":           {webhooks(t, "slack"), bomb(t, "gzip", `{"event_id":"a","b":[`, "0", ",", "]}", 8<<20)},
		"JSON, numbers":      {&idempotency.Options{Fingerprint: idempotency.FingerprintOptions{CanonicalJSON: true}}, bomb(t, "gzip", "[", "0", ",", "]", 8<<20)},
		"JSON, at the limit": {&idempotency.Options{Fingerprint: idempotency.FingerprintOptions{CanonicalJSON: true}}, bomb(t, "gzip", "[", "0", ",", "]", 256<<10-8)},
		"JSON, objects":      {&idempotency.Options{Fingerprint: idempotency.FingerprintOptions{CanonicalJSON: true}}, bomb(t, "gzip", "[", "{}", ",", "]", 256<<10-8)},
		"JSON, nested":       {&idempotency.Options{Fingerprint: idempotency.FingerprintOptions{CanonicalJSON: true}}, bomb(t, "gzip", "", `{"a":`, "", "", 256<<10-8)},
		"fields":             {&idempotency.Options{Fingerprint: idempotency.FingerprintOptions{Fields: []string{"a"}}}, bomb(t, "gzip", `{"a":[`, "0", ",", "]}", 256<<10-8)},
		"form fields":        {&idempotency.Options{Fingerprint: idempotency.FingerprintOptions{Fields: []string{"a"}}}, append(bomb(t, "gzip", "a=1&", "a", "&", "", 256<<10-8), asForm)},
		"parts":              {&idempotency.Options{Fingerprint: idempotency.FingerprintOptions{Multipart: true}}, append(bomb(t, "gzip", "", "--b\r\n\r\n\r\n", "", "--b--\r\n", 256<<10-8), multipart)},
		"headers of a part":  {&idempotency.Options{Fingerprint: idempotency.FingerprintOptions{Multipart: true}}, append(bomb(t, "gzip", "--b\r\n", "A:b\r\n", "", "\r\n\r\n--b--\r\n", 256<<10-8), multipart)},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, test.options, func(http.ResponseWriter, *http.Request) {})
			g.send(test.request...) // what is made once
			var code int
			if n := allocated(func() { code = g.send(test.request...).Code }); n > most {
				t.Errorf("%d KiB were allocated for a body of %d bytes; status %d", n>>10, request(test.request...).ContentLength, code)
			}
		})
	}
}

// TestALongRequestCostsWhatItSent: what is allocated for a body that is not compressed, or for a
// header, is in proportion to its length.
func TestALongRequestCostsWhatItSent(t *testing.T) {
	const ratio, n = 40, 512 << 10
	long := strings.Repeat("x", n)
	keyed := func(key idempotency.KeyFunc) idempotency.Options { return idempotency.Options{Key: key} }
	compared := func(o idempotency.FingerprintOptions) idempotency.Options { return idempotency.Options{Fingerprint: o} }
	cookie := idempotency.Options{Scope: []idempotency.ScopePart{idempotency.ScopeCookie("a")}}
	for name, test := range map[string]struct {
		options idempotency.Options
		request []change
	}{
		"members":           {keyed(idempotency.KeyJSON("id")), []change{withBody(members(n / 10))}},
		"a long text":       {keyed(idempotency.KeyJSON("id")), []change{withBody(`{"id":"a","b":"` + long + `"}`)}},
		"JSON":              {compared(idempotency.FingerprintOptions{CanonicalJSON: true}), []change{withBody(members(n / 10))}},
		"form":              {keyed(idempotency.KeyForm("id")), []change{asForm, withBody(strings.Repeat("&", n) + "id=a")}},
		"escapes":           {keyed(idempotency.KeyForm("id")), []change{asForm, withBody("id=a&b=" + strings.Repeat("%41", n/3))}},
		"query":             {compared(idempotency.FingerprintOptions{SortQuery: true}), []change{withTarget("/charges?" + strings.Repeat("&", n))}},
		"key":               {idempotency.Options{}, []change{withKey(long)}},
		"quoted key":        {idempotency.Options{}, []change{withKey(`"` + strings.Repeat(`\"`, n/2) + `"`)}},
		"parameters":        {idempotency.Options{}, []change{withKey(`"a"` + strings.Repeat(";a", n/2))}},
		"cookies":           {cookie, []change{with("Cookie", strings.Repeat("a=;", n/3))}},
		"credentials":       {idempotency.Options{}, []change{with("X-Api-Key", slices.Repeat([]string{"a"}, n/16)...)}},
		"type":              {compared(idempotency.FingerprintOptions{Multipart: true}), []change{with("Content-Type", "multipart/form-data; "+strings.Repeat("a=b;", n/4))}},
		"content encodings": {keyed(idempotency.KeyJSON("id")), []change{with("Content-Encoding", strings.Repeat("gzip,", n/5))}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, &test.options, func(http.ResponseWriter, *http.Request) {})
			g.send(test.request...)
			if n := allocated(func() { g.send(test.request...) }); n > ratio*512<<10 {
				t.Errorf("%d KiB were allocated for 512 KiB", n>>10)
			}
		})
	}
}

// TestWhatABodyBecomesIsCounted: the memory that looking into a body takes is part of MaxBodyMemory.
// A body that would never find room is too large, and one that does not find it now is asked for
// again. All of it is given back.
func TestWhatABodyBecomesIsCounted(t *testing.T) {
	long := withBody(`{"id":"a","b":"` + strings.Repeat("x", 900<<10) + `"}`)
	least := newRig(t, &idempotency.Options{Key: idempotency.KeyJSON("id"), MaxBodyMemory: 2 << 20}, nil)
	for range 2 {
		isProblem(t, least.send(long), "body-too-large", 413)
		isFresh(t, least.send(withBody(`{"id":"`+strconv.Itoa(len(least.seen()))+`"}`)), 201)
	}
	for name, o := range map[string]*idempotency.Options{
		"key":         {Key: idempotency.KeyJSON("id")},
		"fingerprint": {Fingerprint: idempotency.FingerprintOptions{CanonicalJSON: true}},
	} {
		gate := newGate()
		o.MaxBodyMemory = 5 << 20
		g := newRig(t, o, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Then") == "waits" {
				gate.ServeHTTP(w, r)
			}
		})
		var running []<-chan struct{}
		for _, key := range []string{"1", "2"} {
			done := make(chan struct{})
			running = append(running, done)
			go func() {
				defer close(done)
				g.send(with("X-Then", "waits"), withKey(key), withBody(`{"id":"`+key+`","b":"`+strings.Repeat("x", 900<<10)+`"}`))
			}()
			<-gate.entered
		}
		g.isOverloaded("MaxBodyMemory", g.send(withKey("a"), long))
		close(gate.open)
		for _, done := range running {
			<-done
		}
		for i := range 3 { // with all of the memory each time
			w := g.send(withKey("a"), long)
			if replayed := w.Header().Get("Idempotent-Replayed") != ""; w.Code != 200 || replayed != (i > 0) {
				t.Errorf("%s: answered %d, a replay: %v", name, w.Code, replayed)
			}
		}
		g.ran(3)
	}
}

// TestRequestsWithoutTheChosenFieldsAreCompared: when only some fields are compared, two bodies that
// have none of them are not the same request.
func TestRequestsWithoutTheChosenFieldsAreCompared(t *testing.T) {
	for name, bodies := range map[string][2][]change{
		"JSON": {{withBody(`{"b":1}`)}, {withBody(`{"b":2}`)}},
		"form": {{asForm, withBody("b=1")}, {asForm, withBody("b=2")}},
	} {
		g := newRig(t, &idempotency.Options{Fingerprint: idempotency.FingerprintOptions{Fields: []string{"a", "/c/d"}}}, nil)
		first := g.send(bodies[0]...)
		isFresh(t, first, 201)
		isReplay(t, g.send(bodies[0]...), first)
		if w := g.send(bodies[1]...); w.Code != 422 {
			t.Errorf("%s: another body was answered %d", name, w.Code)
		}
		g.ran(1)
	}
}

// TestAStatusIsBounded: the status of an answer that would be long, once it is decompressed, is not
// looked for.
func TestAStatusIsBounded(t *testing.T) {
	body := request(bomb(t, "gzip", `{"code":"unavailable","message":"`, "x", "", `"}`, 16<<20)...).Body
	answer, err := io.ReadAll(body)
	testkit.Must(t, err)
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write(answer)
	})
	ask := []change{with("Connect-Protocol-Version", "1")}
	if n := allocated(func() { g.send(ask...) }); n > 4<<20 {
		t.Errorf("%d KiB were allocated for an answer of %d bytes", n>>10, len(answer))
	}
	if w := g.send(ask...); w.Header().Get("Idempotent-Replayed") == "" {
		t.Error("the answer was not kept by its HTTP status")
	}
}

var contentRules = []rule{
	{"Several Content-Type lines are refused", func(t *testing.T) {
		const form = "application/x-www-form-urlencoded"
		for _, types := range [][]string{{form, "application/json"}, {"application/json", form}, {form, form}, {"application/grpc", form}, {"text/plain", "application/connect+json"}} {
			g := newRig(t, nil, nil)
			isProblem(t, g.send(with("Content-Type", types...), withBody("id=a")), "body-unreadable", 400)
			isFresh(t, g.send(with("Content-Type", types...), with("Idempotency-Key")), 201) // no key, no guard
			g.ran(1)

			g = newRig(t, &idempotency.Options{Key: idempotency.KeyForm("id")}, nil)
			isProblem(t, g.send(with("Content-Type", types...), withBody("id=a")), "key-invalid", 400)
			g.ran(0)
		}
	}},
	{"What a body becomes is bounded", func(t *testing.T) {
		long := bomb(t, "gzip", `{"id":"a","b":[`, "0", ",", "]}", 8<<20)
		many := withBody(members(20000))
		g := newRig(t, &idempotency.Options{Key: idempotency.KeyFirst(idempotency.KeyJSON("id"), idempotency.KeyForm("id"))}, nil)
		isProblem(t, g.send(long...), "body-too-large", 413)
		isProblem(t, g.send(many), "body-too-large", 413)
		g.ran(0)
		isFresh(t, g.send(withBody(members(19999))), 201)
		isFresh(t, g.send(bomb(t, "gzip", `{"id":"b","b":[`, "0", ",", "]}", 200<<10)...), 201) // which are skipped
		form := append([]change{asForm}, withBody("id=c"+strings.Repeat("&a", 10000)))
		isProblem(t, g.send(form...), "body-too-large", 413)
		g.ran(2)

		f := newRig(t, &idempotency.Options{Fingerprint: idempotency.FingerprintOptions{CanonicalJSON: true}}, nil)
		for key, body := range map[string][]change{"long": long, "many": {many}} {
			first := f.send(append(body, withKey(key))...)
			isFresh(t, first, 201)
			isReplay(t, f.send(append(body, withKey(key))...), first)
		}
		isProblem(t, f.send(withKey("many"), withBody(members(20000)+" ")), "key-reused", 422)
		f.send(withKey("few"), withBody(members(9)))
		if w := f.send(withKey("few"), withBody(members(9)+" ")); w.Header().Get("Idempotent-Replayed") == "" {
			t.Errorf("the same document with a space was answered %d", w.Code)
		}
	}},
}
