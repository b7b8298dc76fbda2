package conform

import (
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
