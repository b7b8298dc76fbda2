package conform

import (
	"bytes"
	"net/http"
	"strings"
)

var mismatchCases = []Case{
	{
		ID: "mismatch-body", Title: "Another body under the same key is refused", Level: Should,
		Sources:  []Source{draft("2.7"), draft("2.2"), stripe, square},
		Sent:     "a request, and another body of the same length with the same key.",
		Expected: "the second one is refused with 422.",
		Ran:      "once",
		check:    func(t *trial) { t.mismatch(withBody(`{"amount":1300}`)) },
	},
	{
		ID: "mismatch-longer", Title: "A longer body under the same key is refused", Level: Should,
		Sources:  []Source{draft("2.7"), draft("2.4")},
		Sent:     "a request, and the same body with a space after it.",
		Expected: "the second one is refused with 422.",
		Ran:      "once",
		check:    func(t *trial) { t.mismatch(withBody(`{"amount":1200} `)) },
	},
	{
		ID: "mismatch-empty", Title: "A request without a body under the same key is refused", Level: Should,
		Sources:  []Source{draft("2.7"), draft("2.4")},
		Sent:     "a request, and one without a body with the same key.",
		Expected: "the second one is refused with 422.",
		Ran:      "once",
		check:    func(t *trial) { t.mismatch(withBody("")) },
	},
	{
		ID: "mismatch-method", Title: "Another method under the same key is refused", Level: Practice,
		Sources:  []Source{whop, ours},
		Sent:     "a POST, and a PATCH with the same target, body and key.",
		Expected: "the second one is refused with 422.",
		Ran:      "once",
		check:    func(t *trial) { t.mismatch(withMethod(http.MethodPatch)) },
	},
	{
		ID: "mismatch-path", Title: "Another path under the same key is refused", Level: Practice,
		Sources:  []Source{stripeError, whop},
		Sent:     "a request, and the same to a path below.",
		Expected: "the second one is refused with 422.",
		Ran:      "once",
		check:    func(t *trial) { t.mismatch(withPath("other")) },
	},
	{
		ID: "mismatch-query", Title: "Another query under the same key is refused", Level: Practice,
		Sources:  []Source{whop, ours},
		Sent:     "a request, and the same with ?a=1 after its path.",
		Expected: "the second one is refused with 422.",
		Ran:      "once",
		check:    func(t *trial) { t.mismatch(withPath("?a=1")) },
	},
	{
		ID: "mismatch-type", Title: "The same body as another media type is refused", Level: Extension,
		Sources:  []Source{ours},
		Sent:     "a request, and the same with another Content-Type.",
		Expected: "the second one is refused with 422.",
		Ran:      "once",
		check:    func(t *trial) { t.mismatch(replacing("Content-Type", "text/plain")) },
	},
	{
		ID: "mismatch-encoding", Title: "The same bytes in another encoding are refused", Level: Extension,
		Sources:  []Source{rfc(9110, "8.4"), ours},
		Sent:     "a request, and the same with Content-Encoding: gzip.",
		Expected: "the second one is refused with 422.",
		Ran:      "once",
		check:    func(t *trial) { t.mismatch(with("Content-Encoding", "gzip")) },
	},
	{
		ID: "mismatch-unharmed", Title: "The refusal of another request leaves the first answer as it was", Level: Must,
		Sources:  []Source{draft("2.6"), draft("2.7")},
		Sent:     "a request, another body with the same key, and the first request again.",
		Expected: "the third answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			first := t.first()
			t.again(withBody("another"))
			t.repeats("the answer after the refusal", t.again(), first)
		},
	},
	{
		ID: "mismatch-problem", Title: "The refusal of another request leads to documentation", Level: Should,
		Sources:  []Source{draft("2.7"), rfc(9457, "3.1")},
		Sent:     "a request, and another body with the same key.",
		Expected: "422 with a problem document, or with a Link of rel=describedby.",
		Ran:      "once",
		check: func(t *trial) {
			t.first()
			t.documented("the refusal", t.again(withBody("another")), t.kit.terms.mismatch)
		},
	},
	{
		ID: "mismatch-discreet", Title: "The refusal of another request says nothing of the first one and its answer", Level: Should,
		Sources:  []Source{draft("5")},
		Sent:     "a request and an answer with a secret in each, and another body with the same key.",
		Expected: "neither secret is in the status line, the fields or the body of what the second one gets.",
		Ran:      "once, if the second one is refused",
		check: func(t *trial) {
			asked, told := "asked-"+t.key[8:], "told-"+t.key[8:]
			t.plays(Answer{Header: []Field{field("Conform-Secret", told)}, Body: []byte(told)})
			t.first(withBody(asked))
			a := t.again(withBody("another"))
			text := new(bytes.Buffer)
			_ = a.header.Write(text) // a buffer takes all
			text.Write(a.body)
			for _, secret := range []string{asked, told} {
				if strings.Contains(text.String(), secret) && a.run() != 2 {
					t.wrongf("who sent another request was told of the first one: %v", a)
				}
			}
		},
	},
	{
		ID: "same-framing", Title: "The same body in another framing is the same request", Level: Should,
		Sources:  []Source{rfc(9110, "6.4"), rfc(9112, "7.1"), draft("2.4")},
		Sent:     "a request with Content-Length, and the same body in chunks.",
		Expected: "the second answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			first := t.first()
			t.repeats("the answer to chunks", t.again(withChunks()), first)
			t.ran(1)
		},
	},
	{
		ID: "same-empty", Title: "No body is no body, however it is said", Level: Should,
		Sources:  []Source{rfc(9112, "6.3"), draft("2.4")},
		Sent:     "a request without a body, with Content-Length: 0, without any length, and with no chunk but the last.",
		Expected: "the second and third answers repeat the first.",
		Ran:      "once",
		check: func(t *trial) {
			first := t.first(withBody(""))
			t.repeats("the answer to no chunk", t.again(withBody(""), withChunks()), first)
			l := t.dial()
			_, err := l.Write(bytes.Replace(t.request(withBody("")).bytes(), []byte("Content-Length: 0\r\n"), nil, 1))
			t.must(err)
			t.repeats("the answer to no length", l.reply(http.MethodPost), first)
			t.ran(1)
		},
	},
	{
		ID: "same-other-fields", Title: "Fields that differ from attempt to attempt do not make another request", Level: Practice,
		Sources:  []Source{draft("2.4"), ours},
		Sent:     "a request, and the same with another User-Agent, Traceparent and Date.",
		Expected: "the second answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			first := t.first(with("User-Agent", "one/1"), with("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
			again := t.again(with("User-Agent", "two/2"), with("Date", "Sun, 06 Nov 1994 08:49:37 GMT"))
			t.repeats("the retry's answer", again, first)
			t.ran(1)
		},
	},
	{
		ID: "same-preferences", Title: "What a retry would rather have does not change what it gets", Level: Extension,
		Sources:  []Source{ours},
		Sent:     "a request, and the same with Accept-Encoding, Accept, Range, If-Match and If-None-Match.",
		Expected: "the second answer repeats the first, with the same Content-Encoding.",
		Ran:      "once",
		check: func(t *trial) {
			t.plays(Answer{Header: []Field{field("ETag", `"v1"`), field("Content-Type", "text/plain")}, Body: []byte("0123456789")})
			first := t.first(with("Accept-Encoding", "identity"))
			again := t.again(with("Accept-Encoding", "gzip, br"), with("Accept", "application/xml"), with("Range", "bytes=2-4"),
				with("If-Match", `"v2"`), with("If-None-Match", `"v1"`))
			t.repeats("the retry's answer", again, first)
			if got := again.values("Content-Encoding"); len(got) > 0 {
				t.wrongf("the retry's answer has Content-Encoding: %s", strings.Join(got, ", "))
			}
			t.ran(1)
		},
	},
}

// mismatch checks that a request with these changes is refused after one without.
func (t *trial) mismatch(changes ...change) {
	t.first()
	t.refused("the other request", t.again(changes...), t.kit.terms.mismatch)
	t.ran(1)
}
