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
