package conform

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

var fieldCases = []Case{
	should("fields", "The fields of the answer are replayed", func(t *trial) {
		sent := []fieldLine{
			field("Location", "/orders/{run}"), field("ETag", `"v{run}"`), field("Cache-Control", "private"),
			field("Content-Language", "de"), field("Conform-One", "a  b"), field("conform-two", "ü, {run}"),
		}
		t.plays(originAnswer{Header: sent, Body: []byte("x")})
		t.first()
		again := t.again()
		for _, f := range sent {
			want := strings.ReplaceAll(*f.Value, "{run}", "1")
			if got := again.values(f.Name); !slices.Equal(got, []string{want}) {
				t.wrongf("the retry's %s is %q; want %q", f.Name, got, want)
			}
		}
		t.ran(1)
	}, draft("2.6"), zuora),
	should("fields-odd", "Fields with unusual names and without a value are replayed", func(t *trial) {
		a := usual()
		for name, value := range map[string]string{"x_under.score": "1", "X!#$%&'*+-.^`|~": "2", "Conform-Empty": ""} {
			a.Header = append(a.Header, field(name, value))
		}
		t.plays(a)
		first, again := t.replayed()
		for _, f := range a.Header {
			if got := again.values(f.Name); !slices.Equal(got, []string{*f.Value}) || !slices.Equal(got, first.values(f.Name)) {
				t.wrongf("the retry's %s is %q, the first one's %q", f.Name, got, first.values(f.Name))
			}
		}
	}, rfc(9110, "5.1"), rfc(9110, "5.5")),
	practice("fields-large", "A large header is replayed whole", func(t *trial) {
		a := usual()
		for i := range 60 {
			a.Header = append(a.Header, field("Conform-"+strconv.Itoa(i), strings.Repeat("x", 500)))
		}
		t.plays(a)
		first, again := t.replayed()
		for i := range 60 {
			if name := "Conform-" + strconv.Itoa(i); len(first.header.Get(name)) != 500 || len(again.header.Get(name)) != 500 {
				t.stopf("%s has %d bytes in the first answer, and %d in the retry's", name, len(first.header.Get(name)), len(again.header.Get(name)))
			}
		}
	}, rfc(9110, "5.4"), ours),
	should("fields-several", "Several lines of a field stay several lines in the same order", func(t *trial) {
		links := []string{"<a>; rel=next", "<b>; rel=prev, <c>", "<a>; rel=next", "<d>"}
		a := usual()
		for _, link := range links {
			a.Header = append(a.Header, field("Link", link))
		}
		t.plays(a)
		first := t.first()
		again := t.again()
		if got := first.values("Link"); strings.Join(got, ", ") != strings.Join(links, ", ") {
			t.wrongf("the first answer's Link is %q", got)
		}
		if got := again.values("Link"); !slices.Equal(got, first.values("Link")) {
			t.wrongf("the retry's Link is %q; the first one's %q", got, first.values("Link"))
		}
		t.ran(1)
	}, rfc(9110, "5.3"), rfc(9110, "5.2")),
	must("fields-hop", "Hop-by-hop fields are not replayed", func(t *trial) {
		t.plays(usual(field("Connection", "Conform-Hop"), field("Conform-Hop", "1"), field("Keep-Alive", "timeout=5"), field("Proxy-Authenticate", "Basic")))
		first := t.first()
		if t.kit.terms.has[needsWire] {
			t.hasNone("the first answer", first, "Conform-Hop", "Keep-Alive")
		}
		again := t.again()
		t.isRun("the retry's answer", again, 1)
		t.hasNone("the retry's answer", again, "Conform-Hop", "Keep-Alive", "Proxy-Authenticate")
		for _, line := range again.values("Connection") {
			if strings.Contains(strings.ToLower(line), "conform-hop") {
				t.wrongf("the retry's answer has Connection: %s", line)
			}
		}
		t.ran(1)
	}, rfc(9110, "7.6.1")),
	should("fields-date", "A replay has its own date", func(t *trial) {
		first := t.first()
		t.pause(1500 * time.Millisecond)
		again := t.again()
		t.repeats("the retry's answer", again, first)
		one, other := again.values("Date"), first.values("Date")
		if len(one) != 1 || len(other) != 1 {
			t.stopf("the first answer has %d lines of Date, the retry's %d", len(other), len(one))
		}
		after, err1 := http.ParseTime(one[0])
		before, err2 := http.ParseTime(other[0])
		if err1 != nil || err2 != nil || !after.After(before) {
			t.wrongf("the first answer is of %s, the retry's of %s", other[0], one[0])
		}
	}, rfc(9110, "6.6.1")),
	must("fields-framing", "A replay has one framing, and it is correct", func(t *trial) {
		for i, chunked := range []bool{false, true} {
			t.plays(originAnswer{Body: []byte("framed"), Chunked: chunked})
			key := withKey(t.numbered(i))
			first, again := t.replayed(key)
			for _, a := range []*reply{first, again} {
				if lengths := a.values("Content-Length"); !a.chunked && !slices.Equal(lengths, []string{strconv.Itoa(len(a.body))}) || a.chunked && len(lengths) > 0 {
					t.wrongf("an answer of %d bytes has Content-Length: %q, chunked: %v", len(a.body), lengths, a.chunked)
				}
			}
		}
	}, rfc(9112, "6.2"), rfc(9112, "6.3")),
	extension("fields-set-cookie", "A cookie is set only by the first answer", func(t *trial) {
		t.plays(usual(field("Set-Cookie", "a={run}"), field("Set-Cookie", "b={run}; HttpOnly")))
		if first := t.first(); !slices.Equal(first.values("Set-Cookie"), []string{"a=1", "b=1; HttpOnly"}) {
			t.wrongf("the first answer's Set-Cookie is %q", first.values("Set-Cookie"))
		}
		again := t.again()
		t.isRun("the retry's answer", again, 1)
		t.hasNone("the retry's answer", again, "Set-Cookie")
		t.ran(1)
	}, rfc(9111, "7.3"), ours),
	extension("fields-moment", "Fields of one request or one moment are not replayed", func(t *trial) {
		names := []string{"X-Request-Id", "Traceparent", "Server-Timing", "RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining", "Age"}
		a := usual()
		for _, name := range names {
			a.Header = append(a.Header, field(name, "1"))
		}
		t.plays(a)
		first := t.first()
		for _, name := range names {
			if len(first.values(name)) != 1 {
				t.wrongf("the first answer has %d lines of %s", len(first.values(name)), name)
			}
		}
		again := t.again()
		t.isRun("the retry's answer", again, 1)
		t.hasNone("the retry's answer", again, names...)
		t.ran(1)
	}, ours),
	extension("mark-forged", "Only the target marks an answer as a replay", func(t *trial) {
		t.plays(usual(field("Idempotent-Replayed", "true")))
		t.hasNone("the first answer", t.first(), "Idempotent-Replayed")
		if again := t.again(); !slices.Equal(again.values("Idempotent-Replayed"), []string{"true"}) {
			t.wrongf("the retry's Idempotent-Replayed is %q", again.values("Idempotent-Replayed"))
		}
		t.hasNone("the answer to GET", t.send(withMethod(http.MethodGet), withBody("")), "Idempotent-Replayed")
		t.ran(2)
	}, ours),
}

// hasNone checks that an answer has none of the fields.
func (t *trial) hasNone(what string, a *reply, names ...string) {
	for _, name := range names {
		if values := a.values(name); len(values) > 0 {
			t.wrongf("%s has %s: %s", what, name, strings.Join(values, ", "))
		}
	}
}

var keptCases = []Case{
	should("kept-errors", "A 4xx answer is replayed", func(t *trial) {
		statuses := []int{400, 402, 404, 410, 422}
		answers := make([]originAnswer, len(statuses))
		for i, status := range statuses {
			answers[i] = usual().as(status)
		}
		t.plays(answers...)
		for i, status := range statuses {
			key := withKey(t.numbered(i))
			first := t.send(key)
			t.isRun("the answer of "+strconv.Itoa(status), first, i+1)
			t.repeats("the retry's answer", t.again(key), first)
		}
		t.ran(len(statuses))
	}, draft("2.6"), stripe, whop),
	should("kept-redirect", "A redirect is replayed", func(t *trial) {
		t.plays(originAnswer{Status: http.StatusSeeOther, Header: []fieldLine{field("Location", "/orders/{run}")}})
		_, again := t.replayed()
		if again.header.Get("Location") != "/orders/1" {
			t.wrongf("the retry is led to %q", again.header.Get("Location"))
		}
	}, draft("2.6"), rfc(9110, "15.4.4")),
	practice("failed-runs-again", "The retry of a 5xx answer runs", func(t *trial) {
		for i, status := range []int{500, 502, 503, 504} {
			t.plays(usual().as(status), usual())
			key := withKey(t.numbered(i))
			t.isStatus("the failure", t.first(key), status)
			second := t.again(key)
			t.isRun("the answer after a "+strconv.Itoa(status), second, 2)
			t.repeats("the third answer", t.again(key), second)
			t.ran(2)
		}
	}, checkout, whop, ours).ifHas(needsFree5xx),
	practice("failed-kept", "A 5xx answer is replayed", func(t *trial) {
		for i, status := range []int{500, 503} {
			t.plays(usual().as(status), usual())
			key := withKey(t.numbered(i))
			t.replayed(key)
		}
	}, stripe).ifHas(needsKeep5xx),
	practice("limited-runs-again", "The retry of a 429 runs", func(t *trial) { t.passing(http.StatusTooManyRequests) }, stripeError, rfc(6585, "4")),
	practice("unauthorized-runs-again", "The retry of a 401 runs", func(t *trial) { t.passing(http.StatusUnauthorized) }, stripeError, rfc(9110, "15.5.2")),
	extension("conflict-runs-again", "The retry of the application's own 409 or 423 runs", func(t *trial) {
		for i, status := range []int{http.StatusConflict, http.StatusLocked} {
			t.passing(status, withKey(t.numbered(i)))
		}
	}, rfc(9110, "15.5.10"), ours),
	extension("later-runs-again", "The retry of an answer with Retry-After runs", func(t *trial) {
		for i, status := range []int{http.StatusForbidden, http.StatusNotFound} {
			t.refusing(status, []fieldLine{field("Retry-After", "1")}, withKey(t.numbered(i)))
		}
	}, rfc(9110, "10.2.3"), ours),
	extension("control-keeps", "The application can have any answer stored", func(t *trial) {
		for i, status := range []int{http.StatusConflict, http.StatusNotFound} {
			a := usual()
			a.Status = status
			a.Header = append(a.Header, field("Idempotency-Control", "max-age=60"))
			if status == http.StatusNotFound {
				a.Header = append(a.Header, field("Retry-After", "1"))
			}
			t.plays(a)
			key := withKey(t.numbered(i))
			t.replayed(key)
		}
	}, ours),
	extension("control-no-store", "The application can have an answer not stored", func(t *trial) {
		t.plays(usual(field("Idempotency-Control", "no-store")), usual())
		t.first()
		second := t.again()
		t.isRun("the second answer", second, 2)
		t.repeats("the third answer", t.again(), second)
		t.ran(2)
	}, ours),
	extension("control-max-age", "The application can set how long an answer is stored", func(t *trial) {
		t.plays(usual(field("Idempotency-Control", "max-age=2")))
		sent := time.Now()
		first := t.first()
		again := t.send()
		if time.Since(sent) < 1500*time.Millisecond {
			t.repeats("the answer at once", again, first)
		}
		until := time.Now().Add(2*time.Second + t.patience())
		for again.run() == 1 && time.Now().Before(until) {
			t.pause(100 * time.Millisecond)
			again = t.send()
		}
		t.isRun("the answer after more than two seconds", again, 2)
	}, ours),
	extension("control-hidden", "The application's instructions about an answer are not passed on", func(t *trial) {
		t.plays(usual(field("Idempotency-Control", "max-age=60")))
		first := t.first()
		for what, a := range map[string]*reply{"the first answer": first, "the retry's answer": t.again(), "the answer to GET": t.send(withMethod(http.MethodGet), withBody(""))} {
			if said := a.values("Idempotency-Control"); a.err != nil || len(said) > 0 {
				t.wrongf("%s is %v, with Idempotency-Control: %s", what, a, strings.Join(said, ", "))
			}
		}
		t.ran(2)
	}, ours),
}

// passing checks that an answer that time or other credentials change is not kept.
func (t *trial) passing(status int, changes ...change) { t.refusing(status, nil, changes...) }

// refusing checks that a refusal with these fields is not kept.
func (t *trial) refusing(status int, fields []fieldLine, changes ...change) {
	t.plays(usual(fields...).as(status), usual())
	t.isStatus("the first answer", t.first(changes...), status)
	second := t.again(changes...)
	t.isRun("the second answer", second, 2)
	t.repeats("the third answer", t.again(changes...), second)
	t.ran(2)
}
