package idempotency_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// webhooks returns the options for a sender.
func webhooks(t *testing.T, sender string) *idempotency.Options {
	t.Helper()
	o, err := idempotency.WebhookOptions(sender)
	testkit.Must(t, err)
	return o
}

var asForm = with("Content-Type", "application/x-www-form-urlencoded")

// eventsOfSenders has a delivery of each sender, as its documentation shows it.
var eventsOfSenders = map[string][]change{
	"webhook":  {with("Webhook-Id", "msg_1")},
	"standard": {with("Webhook-Id", "msg_1")},
	"svix":     {with("Svix-Id", "msg_1")},
	"github":   {with("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"), with("X-GitHub-Hook-ID", "292430182")},
	"gitlab":   {},
	"shopify":  {with("X-Shopify-Event-Id", "98880550"), with("X-Shopify-Webhook-Id", "b54557e4"), with("X-Shopify-Topic", "orders/paid")},
	"razorpay": {with("X-Razorpay-Event-Id", "evt_1")},
	"prolific": {with("X-Event-Id", "e1")},
	"stripe":   {withBody(`{"id":"evt_1","object":"event","data":{"object":{"id":"ch_1"}}}`)},
	"slack":    {withBody(`{"type":"event_callback","event_id":"Ev08MFMKH6","api_app_id":"A1"}`)},
	"square":   {withBody(`{"event_id":"6a8f5f28","type":"payment.updated","data":{"id":"p1"}}`)},
	"paypal":   {withBody(`{"id":"WH-36G56432PK518391U","resource":{"id":"2FY57107YS3937627"}}`)},
}

// eventKey has the field Idempotency-Key of the senders that send it.
var eventKey = map[string][]string{"gitlab": {"f5e5f430-f57b-4e6e-9fac-d9128cd7232f"}}

// TestEachSenderIsDocumented: each preset has a delivery above and a row in the guide, and the
// guide and the table name the same page of the sender.
func TestEachSenderIsDocumented(t *testing.T) {
	guide := testkit.ReadFile(t, "../docs/guides/webhooks.md")
	table := testkit.ReadFile(t, "webhook.go")
	for _, name := range idempotency.WebhookSenders() {
		if _, ok := eventsOfSenders[name]; !ok {
			t.Errorf("no delivery of %s is tested", name)
		}
		if name == idempotency.AnySender {
			continue
		}
		i := slices.IndexFunc(strings.Split(string(guide), "\n"), func(line string) bool { return strings.HasPrefix(line, "| `"+name+"` |") })
		if i < 0 {
			t.Errorf("docs/guides/webhooks.md has no row for %s", name)
			continue
		}
		row := strings.Split(string(guide), "\n")[i]
		_, rest, _ := strings.Cut(row, "](")
		page, _, ok := strings.Cut(rest, ")")
		if !ok || !strings.Contains(string(table), `{name: "`+name+`"`) || !strings.Contains(string(table), `page: "`+page+`"`) {
			t.Errorf("the guide names the page %q for %s, and webhook.go does not", page, name)
		}
	}
	if _, err := idempotency.WebhookOptions("nobody"); err == nil || !strings.Contains(err.Error(), `"nobody"`) || !strings.Contains(err.Error(), "stripe") {
		t.Errorf("an unknown sender: %v", err)
	}
}

// TestTheIDOfAnObjectIsNoEvent: without a sender, an order that goes from one state to the next and
// a payment that is refunded run each time. The log says once that they are not guarded.
func TestTheIDOfAnObjectIsNoEvent(t *testing.T) {
	for name, events := range map[string][][]change{
		"an order":   {{withBody(`{"id":727,"status":"processing"}`)}, {withBody(`{"id":727,"status":"completed"}`)}},
		"a payment":  {{asForm, withBody("id=tr_1&status=paid")}, {asForm, withBody("id=tr_1&status=refunded")}},
		"an event":   {{withBody(`{"event_id":"cart","n":1}`)}, {withBody(`{"event_id":"cart","n":2}`)}},
		"webhook id": {{with("X-Shopify-Webhook-Id", "w"), withBody("1")}, {with("X-Shopify-Webhook-Id", "w"), withBody("2")}},
		"hook id":    {{with("X-GitHub-Hook-ID", "h"), withBody("1")}, {with("X-GitHub-Hook-ID", "h"), withBody("2")}},
		"recursion":  {{with("X-Gitlab-Event-UUID", "h"), withBody("1")}, {with("X-Gitlab-Event-UUID", "h"), withBody("2")}},
		"event type": {{with("X-Event-Id", "7"), withBody("1")}, {with("X-Event-Id", "7"), withBody("2")}},
	} {
		log, logger := newLogger()
		o := webhooks(t, idempotency.AnySender)
		o.Logger = logger
		g := newRig(t, o, nil)
		for _, event := range events {
			isFresh(t, g.send(append(event, with("Idempotency-Key"))...), 201)
		}
		g.ran(int64(len(events)))
		if text := log.String(); strings.Count(text, "it runs without a guard") != 1 {
			t.Errorf("%s: the log is\n%s", name, text)
		}
	}
}

// TestOneEventOfTwoSubscriptions: what a sender delivers under one id to two applications, or for
// two topics, runs for each.
func TestOneEventOfTwoSubscriptions(t *testing.T) {
	for _, test := range []struct {
		sender, id, apart string
	}{
		{"github", "X-GitHub-Delivery", "X-GitHub-Hook-ID"},
		{"shopify", "X-Shopify-Event-Id", "X-Shopify-Topic"},
		{"shopify", "X-Shopify-Event-Id", "X-Shopify-Shop-Domain"},
		{"webhook", "X-GitHub-Delivery", "X-GitHub-Hook-ID"},
	} {
		g := newRig(t, webhooks(t, test.sender), nil)
		for _, apart := range []string{"1", "2"} {
			event := []change{with("Idempotency-Key"), with(test.id, "e"), with(test.apart, apart)}
			first := g.send(event...)
			isFresh(t, first, 201)
			isReplay(t, g.send(event...), first)
		}
		isFresh(t, g.send(with("Idempotency-Key"), with(test.id, "e")), 201) // a test delivery without the other header
		g.ran(3)
	}
}

// TestWebhookOptions: a retry of an event may differ, an event whose answer was not 2xx runs
// again, and the signature is not part of the scope.
func TestWebhookOptions(t *testing.T) {
	g := newRig(t, webhooks(t, "github"), nil)
	fail := true
	g.h = g.m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.runs.Add(1)
		if fail {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	event := func(id, at string) []change {
		return []change{with("Idempotency-Key"), with("X-GitHub-Delivery", id), with("Authorization", "Signature "+at), withBody(`{"at":"` + at + `"}`)}
	}
	g.send(event("a", "1")...)
	fail = false
	first := g.send(event("a", "2")...)
	isFresh(t, first, 200)
	isReplay(t, g.send(event("a", "3")...), first)
	isFresh(t, g.send(event("b", "3")...), 200)
	g.ran(3)
}

// TestAnotherRequestUnderOneKeyIsLogged: when nothing but the key is compared, the first request
// that differs from the one that ran is logged, and names the settings. A repeated one is not.
func TestAnotherRequestUnderOneKeyIsLogged(t *testing.T) {
	for name, o := range map[string]*idempotency.Options{
		"a sender":       webhooks(t, "stripe"),
		"a key alone":    {Key: idempotency.KeyJSON("id"), Fingerprint: idempotency.FingerprintOptions{KeyAlone: true}},
		"a tombstone":    {Key: idempotency.KeyJSON("id"), Fingerprint: idempotency.FingerprintOptions{KeyAlone: true}, MaxStored: 1},
		"a client's key": {Fingerprint: idempotency.FingerprintOptions{KeyAlone: true}},
	} {
		log, logger := newLogger()
		o.Logger = logger
		g := newRig(t, o, nil)
		g.send(withBody(`{"id":"evt_1","secret":1}`))
		g.send(withBody(`{"id":"evt_1","secret":1}`))
		if text := log.String(); strings.Contains(text, "two different requests") {
			t.Errorf("%s: a retry is logged:\n%s", name, text)
		}
		for _, other := range []change{withBody(`{"id":"evt_1","secret":2}`), withTarget("/charges?id=evt_1"), withMethod("PUT")} {
			g.send(withBody(`{"id":"evt_1","secret":1}`), other)
		}
		g.ran(1)
		text := log.String()
		if strings.Count(text, "two different requests") != 1 || !strings.Contains(text, "Fingerprint.KeyAlone") || !strings.Contains(text, "key=") || strings.Contains(text, "secret") {
			t.Errorf("%s: the log is\n%s", name, text)
		}
	}
	log, logger := newLogger()
	g := newRig(t, &idempotency.Options{Logger: logger}, nil)
	g.send()
	isProblem(t, g.send(withBody("another")), "key-reused", 422) // which is an answer, and no warning
	if log.Len() > 0 && strings.Contains(log.String(), "two different requests") {
		t.Errorf("the log is\n%s", log)
	}
}
