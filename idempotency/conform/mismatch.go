package conform

import (
	"bytes"
	"net/http"
	"strings"
)

var mismatchCases = []Case{
	should("mismatch-body", "Another body under the same key is refused", func(t *trial) { t.mismatch(t.another(`{"amount":1300}`)) }, draft("2.7"), draft("2.2"), stripe, square),
	should("mismatch-longer", "A longer body under the same key is refused", func(t *trial) { t.mismatch(withBody(t.kit.options.Body + " ")) }, draft("2.7"), draft("2.4")),
	should("mismatch-empty", "A request without a body under the same key is refused", func(t *trial) { t.mismatch(withBody("")) }, draft("2.7"), draft("2.4")),
	practice("mismatch-method", "Another method under the same key is refused", func(t *trial) { t.mismatch(withMethod(http.MethodPatch)) }, whop, ours),
	practice("mismatch-path", "Another path under the same key is refused", func(t *trial) { t.mismatch(withPath("other")) }, stripeError, whop),
	practice("mismatch-query", "Another query under the same key is refused", func(t *trial) { t.mismatch(withPath("?a=1")) }, whop, ours),
	extension("mismatch-type", "The same body with another media type is refused", func(t *trial) { t.mismatch(replacing("Content-Type", "text/plain")) }, ours),
	extension("mismatch-encoding", "The same bytes with another content encoding are refused", func(t *trial) { t.mismatch(with("Content-Encoding", "gzip")) }, rfc(9110, "8.4"), ours),
	must("mismatch-unharmed", "The refusal of another request does not change the first answer", func(t *trial) {
		first := t.first()
		t.again(t.another("another"))
		t.repeats("the answer after the refusal", t.again(), first)
	}, draft("2.6"), draft("2.7")),
	should("mismatch-problem", "The refusal of another request links to documentation", func(t *trial) {
		t.first()
		t.documented("the refusal", t.again(t.another("another")), t.kit.terms.mismatch)
	}, draft("2.7"), rfc(9457, "3.1")),
	should("mismatch-discreet", "The refusal of another request reveals nothing about the first request and its answer", func(t *trial) {
		asked, answered := "asked-"+t.key[8:], "answered-"+t.key[8:]
		t.plays(originAnswer{Header: []fieldLine{field("Conform-Secret", answered)}, Body: []byte(answered)})
		t.first(withBody(asked))
		a := t.again(withBody("another"))
		text := new(bytes.Buffer)
		_ = a.header.Write(text) // a buffer takes all
		text.Write(a.body)
		for _, secret := range []string{asked, answered} {
			if strings.Contains(text.String(), secret) && a.run() != 2 {
				t.wrongf("the refusal of another request reveals the first one: %v", a)
			}
		}
	}, draft("5")),
	should("same-framing", "The same body with another framing is the same request", func(t *trial) {
		first := t.first()
		t.repeats("the answer to chunks", t.again(withChunks()), first)
		t.ran(1)
	}, rfc(9110, "6.4"), rfc(9112, "7.1"), draft("2.4")),
	should("same-empty", "All framings of an empty body are the same request", func(t *trial) {
		first := t.first(withBody(""))
		t.repeats("the answer to no chunk", t.again(withBody(""), withChunks()), first)
		l := t.dial()
		_, err := l.Write(bytes.Replace(t.request(withBody("")).bytes(), []byte("Content-Length: 0\r\n"), nil, 1))
		t.must(err)
		t.repeats("the answer to no length", l.reply(http.MethodPost), first)
		t.ran(1)
	}, rfc(9112, "6.3"), draft("2.4")),
	practice("same-other-fields", "Fields that change with each attempt do not make another request", func(t *trial) {
		first := t.first(with("User-Agent", "one/1"), with("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
		again := t.again(with("User-Agent", "two/2"), with("Date", "Sun, 06 Nov 1994 08:49:37 GMT"))
		t.repeats("the retry's answer", again, first)
		t.ran(1)
	}, draft("2.4"), ours),
	extension("same-preferences", "A retry with other Accept fields gets the first answer", func(t *trial) {
		t.plays(originAnswer{Header: []fieldLine{field("ETag", `"v1"`), field("Content-Type", "text/plain")}, Body: []byte("0123456789")})
		first := t.first(with("Accept-Encoding", "identity"))
		again := t.again(with("Accept-Encoding", "gzip, br"), with("Accept", "application/xml"), with("Range", "bytes=2-4"),
			with("If-Match", `"v2"`), with("If-None-Match", `"v1"`))
		t.repeats("the retry's answer", again, first)
		if got := again.values("Content-Encoding"); len(got) > 0 {
			t.wrongf("the retry's answer has Content-Encoding: %s", strings.Join(got, ", "))
		}
		t.ran(1)
	}, ours),
}

// mismatch checks that a request with these changes is refused after one without.
func (t *trial) mismatch(changes ...change) {
	t.first()
	t.refused("the other request", t.again(changes...), t.kit.terms.mismatch)
	t.ran(1)
}
