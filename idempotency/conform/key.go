package conform

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
)

var keyCases = []Case{
	must("key-uuid", "A UUID as a quoted string is a key", func(t *trial) { t.sameKey(uuid(t.key), uuid(t.key)) }, draft("2.1"), rfc(9651, "3.3.3")),
	practice("key-bare", "A key without quotes is a key", func(t *trial) { t.sameKey(t.key, t.key) }, stripe, adyen, whop).ifHas(needsBare),
	extension("key-bare-is-quoted", "A key with quotes and the same key without quotes are one key", func(t *trial) { t.sameKey(t.key, t.quoted()) }, ours).ifHas(needsBare),
	should("key-strict", "A strict target refuses a key without quotes", func(t *trial) {
		for _, key := range []string{t.key, "17", ":aGk=:"} {
			t.refused("the key "+key, t.send(withKey(key)), []int{http.StatusBadRequest})
		}
		t.ran(0)
	}, draft("2.1"), rfc(9651, "4.2")).ifHas(needsStrict),
	should("key-parameters", "Parameters after the key are not part of it", func(t *trial) { t.sameKey(t.quoted(), t.quoted()+";a=1;b") }, rfc(9651, "3.3"), rfc(9651, "2.1")),
	should("key-escapes", "An escaped quote is part of the key", func(t *trial) {
		first := t.first(withKey(`"` + t.key + `a\"b"`))
		t.isRun("the key with a backslash in it", t.send(withKey(`"`+t.key+`a\\b"`)), 2)
		t.isRun("the key without either", t.send(withKey(`"`+t.key+`ab"`)), 3)
		t.repeats("the retry's answer", t.again(withKey(`"`+t.key+`a\"b"`)), first)
		t.ran(3)
	}, rfc(9651, "3.3.3"), rfc(9651, "4.2.5")),
	must("key-padding", "Whitespace around the field's value is not part of the key", func(t *trial) { t.sameKey(t.quoted(), "  \t"+t.quoted()+" \t ") }, rfc(9110, "5.5")),
	must("key-inner-space", "Whitespace within the quotes is part of the key", func(t *trial) {
		t.isRun("the answer to one space", t.send(withKey(`"`+t.key+` b"`)), 1)
		t.isRun("the answer to two spaces", t.send(withKey(`"`+t.key+`  b"`)), 2)
		t.ran(2)
	}, rfc(9651, "3.3.3")),
	must("key-field-case", "The field's name is case-insensitive", func(t *trial) {
		first := t.first()
		for _, name := range []string{"idempotency-key", "IDEMPOTENCY-KEY"} {
			t.repeats("the answer to "+name, t.again(without("Idempotency-Key"), with(name, t.quoted())), first)
		}
		t.ran(1)
	}, rfc(9110, "5.1")),
	must("key-case", "Keys are case-sensitive", func(t *trial) {
		t.isRun("the first key's answer", t.send(withKey(t.quoted())), 1)
		t.isRun("the answer to the key in capitals", t.send(withKey(strings.ToUpper(t.quoted()))), 2)
		t.ran(2)
	}, draft("2.2"), rfc(9651, "3.3.3")),
	practice("key-long", "A key can have 255 characters, and all of them count", func(t *trial) {
		long := t.key + strings.Repeat("x", 254-len(t.key))
		first := t.first(withKey(t.quote(long + "1")))
		t.isRun("the second key's answer", t.send(withKey(t.quote(long+"2"))), 2)
		t.repeats("the retry's answer", t.again(withKey(t.quote(long+"1"))), first)
		t.ran(2)
	}, stripe, whop, solidgate),
	extension("key-arrives", "The origin gets the key unchanged", func(t *trial) {
		t.first(withKey(t.quoted() + ";p"))
		if seen := t.seen(0); len(seen) == 1 {
			if got := strings.Join(seen[0].Header["Idempotency-Key"], ", "); got != t.quoted()+";p" {
				t.wrongf("the origin got the key %s", got)
			}
		}
		t.ran(1)
	}, ours),
	extension("key-x", "X-Idempotency-Key is accepted too", func(t *trial) {
		alone := []change{without("Idempotency-Key"), with("X-Idempotency-Key", t.quoted())}
		first := t.first(alone...)
		t.repeats("the answer to Idempotency-Key", t.again(), first)
		t.repeats("the answer to both", t.again(with("X-Idempotency-Key", t.quoted())), first)
		t.ran(1)
	}, ours, mercado),
	extension("key-x-differs", "Two fields with two keys are refused", func(t *trial) {
		t.refused("the request with two keys", t.send(with("X-Idempotency-Key", t.numbered(2))), []int{http.StatusBadRequest})
		t.ran(0)
	}, ours),
	should("missing-refused", "A target that requires keys refuses a request without a key", func(t *trial) {
		t.refused("the request without a key", t.send(without("Idempotency-Key")), []int{http.StatusBadRequest})
		t.ran(0)
	}, draft("2.7")).ifHas(needsRequired),
	should("missing-problem", "The refusal of a missing key links to documentation", func(t *trial) {
		t.documented("the refusal", t.send(without("Idempotency-Key")), []int{http.StatusBadRequest})
	}, draft("2.7"), rfc(9457, "3.1")).ifHas(needsRequired),
	practice("missing-runs", "A request without a key runs each time if the target does not require keys", func(t *trial) {
		t.isRun("the first answer", t.send(without("Idempotency-Key")), 1)
		t.isRun("the second answer", t.send(without("Idempotency-Key")), 2)
		t.ran(2)
	}, stripe, paypal).ifHas(needsOptional),
}

// uuid makes the usual form of 26 letters and digits, quoted.
func uuid(key string) string {
	hex := make([]byte, 32)
	for i := range hex {
		hex[i] = "0123456789abcdef"[key[len(key)-26+i%26]%16]
	}
	return `"` + string(hex[:8]) + "-" + string(hex[8:12]) + "-4" + string(hex[13:16]) + "-8" + string(hex[17:20]) + "-" + string(hex[20:]) + `"`
}

// sameKey checks that two values of the field are the same key.
func (t *trial) sameKey(one, other string) {
	first := t.first(withKey(one))
	t.repeats("the answer to the key "+other, t.again(withKey(other)), first)
	t.ran(1)
}

// documented checks that a refusal explains itself, by a problem document or a link to
// documentation.
func (t *trial) documented(what string, a *reply, statuses []int) {
	t.refused(what, a, statuses)
	if a.err != nil {
		return
	}
	for _, link := range a.values("Link") {
		if strings.Contains(link, "describedby") {
			return
		}
	}
	var p struct {
		Type, Title string
		Status      *int
	}
	media, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	if err := json.Unmarshal(a.body, &p); !strings.EqualFold(strings.TrimSpace(media), "application/problem+json") || err != nil {
		t.wrongf("%s is neither a problem document nor has it a Link of rel=describedby: %v", what, a)
		return
	}
	if p.Type == "" || p.Type == "about:blank" || p.Title == "" {
		t.wrongf("%s has no type or no title: %s", what, excerpt(a.body))
	}
	if p.Status != nil && *p.Status != a.status {
		t.wrongf("%s has the status %d in a document that says %d", what, a.status, *p.Status)
	}
}

// malformedKeys are values of the field that are not keys.
var malformedKeys = []struct {
	id, title string
	level     Level
	sources   []Source
	lines     func(key string) []string
}{
	{
		"empty", "An empty key is refused", Should,
		[]Source{draft("5"), rfc(9651, "4.2")},
		func(string) []string { return []string{"", `""`} },
	},
	{
		"unbalanced", "A key with an unclosed quote is refused", Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2.5")},
		func(key string) []string { return []string{`"` + key, key + `"`} },
	},
	{
		"list", "A list of keys is refused", Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2")},
		func(key string) []string { return []string{`"` + key + `", "b"`, key + ",b"} },
	},
	{
		"trailing", "A key with text after its closing quote is refused", Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2")},
		func(key string) []string { return []string{`"` + key + `" x`, `"` + key + `"x`} },
	},
	{
		"escape", "A key with an invalid escape is refused", Should,
		[]Source{draft("5"), rfc(9651, "4.2.5")},
		func(key string) []string { return []string{`"` + key + `a\b"`} },
	},
	{
		"bare-space", "A key without quotes and with a space is refused", Should,
		[]Source{draft("2.1"), solidgate},
		func(key string) []string { return []string{key + " b"} },
	},
	{
		"control", "A key with a control character is refused", Should,
		[]Source{draft("5"), rfc(9651, "3.3.3"), rfc(9110, "5.5")},
		func(key string) []string {
			return []string{`"` + key + "\tb\"", `"` + key + "\x01b\"", `"` + key + "\x7fb\""}
		},
	},
	{
		"non-ascii", "A key with a non-ASCII character is refused", Should,
		[]Source{draft("5"), rfc(9651, "3.3.3")},
		func(key string) []string { return []string{`"` + key + `ü"`, `"` + key + "\xff\""} },
	},
	{
		"too-long", "A key of more than 255 characters is refused", Practice,
		[]Source{draft("5"), stripe, solidgate},
		func(key string) []string {
			return []string{`"` + key + strings.Repeat("x", 256-len(key)) + `"`, `"` + key + strings.Repeat("x", 4000-len(key)) + `"`}
		},
	},
}

// malformedCases returns a case for each of them, and two others.
func malformedCases() []Case {
	var all []Case
	for _, m := range malformedKeys {
		all = append(all, Case{
			ID: "malformed-" + m.id, Title: m.title, Level: m.level, Sources: m.sources,
			check: func(t *trial) {
				for _, line := range m.lines(t.key) {
					t.refused("the key "+excerpt([]byte(line)), t.send(withKey(line)), []int{http.StatusBadRequest})
				}
				t.ran(0)
			},
		})
	}
	return append(all, should("malformed-lines", "More than one line of the field is refused", func(t *trial) {
		for _, second := range []string{t.numbered(2), t.quoted()} {
			t.refused("the request with two lines", t.send(with("Idempotency-Key", second)), []int{http.StatusBadRequest})
		}
		t.ran(0)
	}, draft("2.1"), rfc(9651, "4.2")), should("malformed-problem", "The refusal of a malformed key links to documentation", func(t *trial) {
		t.documented("the refusal", t.send(withKey(`""`)), []int{http.StatusBadRequest})
		t.ran(0)
	}, draft("2.7"), rfc(9457, "3.1")))
}

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
	practice("same-other-fields", "Fields that change with each try do not make another request", func(t *trial) {
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
