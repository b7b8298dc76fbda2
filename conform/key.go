package conform

import (
	"encoding/json"
	"net/http"
	"strings"
)

var keyCases = []Case{
	{
		ID: "key-uuid", Title: "A UUID as a quoted string is a key", Level: Must,
		Sources:  []Source{draft("2.1"), rfc(9651, "3.3.3")},
		Sent:     "a request, twice, whose key looks like that of the draft's example.",
		Expected: "the second answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			t.sameKey(uuid(t.key), uuid(t.key))
		},
	},
	{
		ID: "key-bare", Title: "A key without quotes is a key", Level: Practice,
		Sources: []Source{stripe, adyen, whop}, needs: needsBare,
		Sent:     "a request, twice, whose key has no quotes around it.",
		Expected: "the second answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			t.sameKey(t.key, t.key)
		},
	},
	{
		ID: "key-bare-is-quoted", Title: "With quotes and without it is the same key", Level: Extension,
		Sources: []Source{ours}, needs: needsBare,
		Sent:     "a request with a key without quotes, and again with quotes.",
		Expected: "the second answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			t.sameKey(t.key, t.quoted())
		},
	},
	{
		ID: "key-strict", Title: "A key without quotes is refused where only strings are accepted", Level: Should,
		Sources: []Source{draft("2.1"), rfc(9651, "4.2")}, needs: needsStrict,
		Sent:     "requests whose keys are a token, an integer and a byte sequence.",
		Expected: "refused with 400.",
		Ran:      "never",
		check: func(t *trial) {
			for _, key := range []string{t.key, "17", ":aGk=:"} {
				t.refused("the key "+key, t.send(withKey(key)), []int{http.StatusBadRequest})
			}
			t.ran(0)
		},
	},
	{
		ID: "key-parameters", Title: "Parameters after the key are not part of it", Level: Should,
		Sources:  []Source{rfc(9651, "3.3"), rfc(9651, "2.1")},
		Sent:     `a request with a key, and again with ";a=1;b" after the closing quote.`,
		Expected: "the second answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			t.sameKey(t.quoted(), t.quoted()+";a=1;b")
		},
	},
	{
		ID: "key-escapes", Title: "An escaped quote is part of the key", Level: Should,
		Sources:  []Source{rfc(9651, "3.3.3"), rfc(9651, "4.2.5")},
		Sent:     `requests whose keys differ in an escaped quote and an escaped backslash: "a\"b", "a\\b", "ab"; the first again.`,
		Expected: "three answers of three runs, and a replay of the first.",
		Ran:      "three times",
		check: func(t *trial) {
			first := t.first(withKey(`"` + t.key + `a\"b"`))
			t.isRun("the key with a backslash in it", t.send(withKey(`"`+t.key+`a\\b"`)), 2)
			t.isRun("the key without either", t.send(withKey(`"`+t.key+`ab"`)), 3)
			t.repeats("the retry's answer", t.again(withKey(`"`+t.key+`a\"b"`)), first)
			t.ran(3)
		},
	},
	{
		ID: "key-padding", Title: "Space around the field's value is not part of the key", Level: Must,
		Sources:  []Source{rfc(9110, "5.5")},
		Sent:     "a request with a key, and again with spaces and a tab before and after it.",
		Expected: "the second answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			t.sameKey(t.quoted(), "  \t"+t.quoted()+" \t ")
		},
	},
	{
		ID: "key-inner-space", Title: "Space within the quotes is part of the key", Level: Must,
		Sources:  []Source{rfc(9651, "3.3.3")},
		Sent:     `two requests with keys like "a b" and "a  b".`,
		Expected: "two answers, each of a run of its own.",
		Ran:      "twice",
		check: func(t *trial) {
			t.isRun("the answer to one space", t.send(withKey(`"`+t.key+` b"`)), 1)
			t.isRun("the answer to two spaces", t.send(withKey(`"`+t.key+`  b"`)), 2)
			t.ran(2)
		},
	},
	{
		ID: "key-field-case", Title: "The field's name is the same in any case", Level: Must,
		Sources:  []Source{rfc(9110, "5.1")},
		Sent:     "a request with Idempotency-Key, and again with idempotency-key and IDEMPOTENCY-KEY.",
		Expected: "the second and third answers repeat the first.",
		Ran:      "once",
		check: func(t *trial) {
			first := t.first()
			for _, name := range []string{"idempotency-key", "IDEMPOTENCY-KEY"} {
				t.repeats("the answer to "+name, t.again(without("Idempotency-Key"), with(name, t.quoted())), first)
			}
			t.ran(1)
		},
	},
	{
		ID: "key-case", Title: "Keys that differ in case are different", Level: Must,
		Sources:  []Source{draft("2.2"), rfc(9651, "3.3.3")},
		Sent:     "two requests whose keys differ in the case of their letters.",
		Expected: "two answers, each of a run of its own.",
		Ran:      "twice",
		check: func(t *trial) {
			t.isRun("the first key's answer", t.send(withKey(t.quoted())), 1)
			t.isRun("the answer to the key in capitals", t.send(withKey(strings.ToUpper(t.quoted()))), 2)
			t.ran(2)
		},
	},
	{
		ID: "key-long", Title: "A key can have 255 characters, and all of them count", Level: Practice,
		Sources:  []Source{stripe, whop, solidgate},
		Sent:     "two requests whose keys have 255 characters and differ in the last one; the first again.",
		Expected: "two answers of two runs, and a replay of the first.",
		Ran:      "twice",
		check: func(t *trial) {
			long := t.key + strings.Repeat("x", 254-len(t.key))
			first := t.first(withKey(t.quote(long + "1")))
			t.isRun("the second key's answer", t.send(withKey(t.quote(long+"2"))), 2)
			t.repeats("the retry's answer", t.again(withKey(t.quote(long+"1"))), first)
			t.ran(2)
		},
	},
	{
		ID: "key-arrives", Title: "The origin gets the key as it was sent", Level: Extension,
		Sources:  []Source{ours},
		Sent:     "a request whose key has a parameter.",
		Expected: "the origin's answer.",
		Ran:      "once, with the same field, byte for byte",
		check: func(t *trial) {
			t.first(withKey(t.quoted() + ";p"))
			if seen := t.seen(0); len(seen) == 1 {
				if got := strings.Join(seen[0].Header["Idempotency-Key"], ", "); got != t.quoted()+";p" {
					t.wrongf("the origin got the key %s", got)
				}
			}
			t.ran(1)
		},
	},
	{
		ID: "key-x", Title: "X-Idempotency-Key is accepted too", Level: Extension,
		Sources:  []Source{ours, mercado},
		Sent:     "a request with X-Idempotency-Key alone, with Idempotency-Key alone, and with both.",
		Expected: "the second and third answers repeat the first.",
		Ran:      "once",
		check: func(t *trial) {
			alone := []change{without("Idempotency-Key"), with("X-Idempotency-Key", t.quoted())}
			first := t.first(alone...)
			t.repeats("the answer to Idempotency-Key", t.again(), first)
			t.repeats("the answer to both", t.again(with("X-Idempotency-Key", t.quoted())), first)
			t.ran(1)
		},
	},
	{
		ID: "key-x-differs", Title: "Two fields with two keys are refused", Level: Extension,
		Sources:  []Source{ours},
		Sent:     "a request with another key in X-Idempotency-Key than in Idempotency-Key.",
		Expected: "refused with 400.",
		Ran:      "never",
		check: func(t *trial) {
			t.refused("the request with two keys", t.send(with("X-Idempotency-Key", t.numbered(2))), []int{http.StatusBadRequest})
			t.ran(0)
		},
	},
	{
		ID: "missing-refused", Title: "A request without a key is refused where one is required", Level: Should,
		Sources: []Source{draft("2.7")}, needs: needsRequired,
		Sent:     "a POST without a key.",
		Expected: "refused with 400.",
		Ran:      "never",
		check: func(t *trial) {
			t.refused("the request without a key", t.send(without("Idempotency-Key")), []int{http.StatusBadRequest})
			t.ran(0)
		},
	},
	{
		ID: "missing-problem", Title: "The refusal of a missing key leads to documentation", Level: Should,
		Sources: []Source{draft("2.7"), rfc(9457, "3.1")}, needs: needsRequired,
		Sent:     "a POST without a key.",
		Expected: "400 with a problem document, or with a Link of rel=describedby.",
		Ran:      "never",
		check: func(t *trial) {
			t.documented("the refusal", t.send(without("Idempotency-Key")), []int{http.StatusBadRequest})
		},
	},
	{
		ID: "missing-runs", Title: "A request without a key runs each time where none is required", Level: Practice,
		Sources: []Source{stripe, paypal}, needs: needsOptional,
		Sent:     "the same POST without a key, twice.",
		Expected: "two answers, each of a run of its own.",
		Ran:      "twice",
		check: func(t *trial) {
			t.isRun("the first answer", t.send(without("Idempotency-Key")), 1)
			t.isRun("the second answer", t.send(without("Idempotency-Key")), 2)
			t.ran(2)
		},
	},
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

// documented checks that a refusal says what it is about: by a problem document, or by a
// link to the documentation.
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
