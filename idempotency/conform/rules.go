package conform

import (
	"encoding/json"
	"net/http"
	"strings"
)

// What the APIs of profiles say.
var (
	stripeAPIError = Source{"Stripe, error object", "https://docs.stripe.com/api/errors"}
	stripeCodes    = Source{"Stripe, error codes", "https://docs.stripe.com/error-codes"}
	ucpREST        = Source{"UCP, REST", "https://github.com/Universal-Commerce-Protocol/ucp/blob/main/docs/specification/checkout-rest.md"}
	ucpReplay      = Source{"UCP, replay protection", "https://github.com/Universal-Commerce-Protocol/ucp/blob/main/docs/specification/signatures.md#replay-protection"}
)

// acp is a section of the RFC of the Agentic Commerce Protocol's checkout.
func acp(section string) Source {
	return Source{"ACP §" + section, "https://github.com/agentic-commerce-protocol/agentic-commerce-protocol/blob/main/rfcs/rfc.agentic_checkout.md"}
}

var stripeRules = []Case{
	practice("stripe-mismatch", "The refusal of another request is an `idempotency_error`", func(t *trial) { t.mismatchSays("error.type", "idempotency_error") }, stripeAPIError),
	practice("stripe-running", "The refusal of a duplicate has the code `idempotency_key_in_use`", func(t *trial) { t.runningSays("error.code", "idempotency_key_in_use") }, stripeCodes),
}

var acpRules = []Case{
	must("acp-missing", "The refusal of a missing key has the code `idempotency_key_required`", func(t *trial) {
		t.says("the refusal", t.send(without("Idempotency-Key")), []int{http.StatusBadRequest}, "type", "invalid_request", "code", "idempotency_key_required")
		t.ran(0)
	}, acp("6.1"), acp("6.4")),
	must("acp-path", "The same key at another path is another key", func(t *trial) {
		first := t.first()
		t.isRun("the answer at the other path", t.again(withPath("other")), 2)
		t.repeats("the retry's answer", t.again(), first)
		t.ran(2)
	}, acp("6.1")),
	must("acp-mismatch", "The refusal of another body has the code `idempotency_conflict`", func(t *trial) {
		t.mismatchSays("type", "invalid_request", "code", "idempotency_conflict", "message", "")
	}, acp("6.4")),
	must("acp-running", "The refusal of a duplicate has the code `idempotency_in_flight`", func(t *trial) {
		t.runningSays("type", "invalid_request", "code", "idempotency_in_flight", "message", "")
	}, acp("6.4")),
	must("acp-equal", "The order of members and zeros at the end of a number make no other body", func(t *trial) {
		first := t.first(withBody(`{"amount":1,"items":[1,2],"buyer":null}`))
		t.repeats("the answer to other members' order", t.again(withBody(`{ "buyer":null, "items":[1,2], "amount":1 }`)), first)
		t.repeats("the answer to 1.0", t.again(withBody(`{"amount":1.0,"items":[1,2],"buyer":null}`)), first)
		t.ran(1)
	}, acp("6.2")),
	must("acp-differs", "The order of elements, and null in place of no member, make another body", func(t *trial) {
		t.first(withBody(`{"items":[1,2],"buyer":null}`))
		t.refused("the other order", t.again(withBody(`{"items":[2,1],"buyer":null}`)), t.kit.terms.mismatch)
		t.refused("the body without the member", t.again(withBody(`{"items":[1,2]}`)), t.kit.terms.mismatch)
		t.ran(1)
	}, acp("6.2")),
	should("acp-echo", "A refusal repeats the key in `Idempotency-Key`", func(t *trial) {
		t.first()
		if a := t.again(t.another("another")); a.err != nil || a.header.Get("Idempotency-Key") != t.quoted() {
			t.wrongf("the refusal does not repeat the key: %v", a)
		}
	}, acp("3.1")),
}

var ucpRules = []Case{
	must("ucp-mismatch", "The refusal of another body has `code` and `content`", func(t *trial) { t.mismatchSays("code", "", "content", "") }, ucpREST, ucpReplay),
}

// mismatchSays checks the members of the refusal of another request.
func (t *trial) mismatchSays(members ...string) {
	t.first()
	t.says("the refusal", t.again(t.another(`{"amount":1300}`)), t.kit.terms.mismatch, members...)
	t.ran(1)
}

// runningSays checks the members of the refusal of a duplicate while the first request runs.
func (t *trial) runningSays(members ...string) {
	first := t.slow()
	t.says("the refusal", t.meanwhile(), t.kit.terms.conflict, members...)
	t.open(0)
	<-first
}

// says checks that a refusal is a JSON object with these members: a path with dots and its value,
// in turns; "" is any text.
func (t *trial) says(what string, a *reply, statuses []int, members ...string) {
	t.refused(what, a, statuses)
	if a.err != nil {
		return
	}
	var document map[string]any
	media, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	if err := json.Unmarshal(a.body, &document); err != nil || !strings.EqualFold(strings.TrimSpace(media), "application/json") {
		t.wrongf("%s is not a JSON object: %v", what, a)
		return
	}
	for i := 0; i < len(members); i += 2 {
		var value any = document
		for name := range strings.SplitSeq(members[i], ".") {
			object, _ := value.(map[string]any)
			value = object[name]
		}
		text, _ := value.(string)
		if text == "" || members[i+1] != "" && text != members[i+1] {
			t.wrongf("%s has %s %q and not %q: %s", what, members[i], text, members[i+1], excerpt(a.body))
		}
	}
}
