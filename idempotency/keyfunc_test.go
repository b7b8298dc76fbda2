package idempotency_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestDerivedKeys: each KeyFunc finds the key, none, or refuses the request.
func TestDerivedKeys(t *testing.T) {
	form := with("Content-Type", "application/x-www-form-urlencoded")
	several := idempotency.KeyOf(idempotency.KeyHeader("X-Source"), idempotency.KeyJSON("id"))
	either := idempotency.KeyFirst(idempotency.KeyHeader("X-Event"), idempotency.KeyJSON("id"), idempotency.KeyForm("id"))
	long := strings.Repeat("x", 200)
	for name, test := range map[string]struct {
		key  idempotency.KeyFunc
		sent []change
		want string // "": none; "!": refused
	}{
		"member":                {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a"}`)}, "a"},
		"number":                {idempotency.KeyJSON("id"), []change{withBody(`{"id":1.0}`)}, "1.0"},
		"pointer":               {idempotency.KeyJSON("/a/0/id"), []change{withBody(`{"a":[{"id":"x"}]}`)}, "x"},
		"pointer into an array": {idempotency.KeyJSON("/1/id"), []change{withBody(`[{"id":"x"},{"id":"y"}]`)}, "y"},
		"array":                 {idempotency.KeyJSON("id"), []change{withBody(`[{"id":"x"},{"id":"y"}]`)}, "x,y"},
		"array, one lacks it":   {idempotency.KeyJSON("id"), []change{withBody(`[{"id":"x"},{}]`)}, ""},
		"list":                  {idempotency.KeyJSON("ids"), []change{withBody(`{"ids":["x,y",2]}`)}, "x%2Cy,2"},
		"one, with a comma":     {idempotency.KeyJSON("id"), []change{withBody(`{"id":"x,y"}`)}, "x%2Cy"},
		"empty array":           {idempotency.KeyJSON("id"), []change{withBody(`[]`)}, ""},
		"object":                {idempotency.KeyJSON("id"), []change{withBody(`{"id":{}}`)}, "!"},
		"empty":                 {idempotency.KeyJSON("id"), []change{withBody(`{"id":""}`)}, "!"},
		"no JSON":               {idempotency.KeyJSON("id"), []change{withBody(`id`)}, ""},
		"several documents":     {idempotency.KeyJSON("id"), []change{withBody(`{"id":1}` + "\n" + `{"id":2}`)}, ""},
		"compressed":            {idempotency.KeyJSON("id"), compressed(t, `{"id":"a"}`, time.Unix(1, 0)), "a"},
		"compressed, longest":   {idempotency.KeyJSON("id"), compressed(t, `{"id":"a"}`+strings.Repeat(" ", 256<<10-10), time.Unix(1, 0)), "a"},
		"compressed, too long":  {idempotency.KeyJSON("id"), compressed(t, `{"id":"a"}`+strings.Repeat(" ", 256<<10-9), time.Unix(1, 0)), "!"},
		"compressed, damaged":   {idempotency.KeyJSON("id"), []change{with("Content-Encoding", "gzip"), withBody(`{"id":"a"}`)}, ""},
		"twice":                 {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a","id":"b"}`)}, "!"},
		"twice, deep":           {idempotency.KeyJSON("/a/id"), []change{withBody(`{"a":{"id":"a"},"a":{"id":"b"}}`)}, "!"},
		"another member twice":  {idempotency.KeyJSON("id"), []change{withBody(`{"b":{"id":1},"id":"a","b":2}`)}, "a"},
		"broken after it":       {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a","b":]}`)}, ""},
		"too many values":       {idempotency.KeyJSON("id"), []change{withBody(`{"id":[` + strings.Repeat("1,", 10000) + `1]}`)}, "!"},
		"the most values":       {idempotency.KeyJSON("id"), []change{withBody(`{"id":[` + strings.Repeat("1,", 9999) + `1]}`)}, "sha256:"},
		"too deep":              {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a","b":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}`)}, ""},
		"long, not compressed":  {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a"}` + strings.Repeat(" ", 8<<20))}, "a"},
		"compressed strangely":  {idempotency.KeyJSON("id"), []change{with("Content-Encoding", "br"), withBody(`{"id":"a"}`)}, ""},
		"form":                  {idempotency.KeyForm("id"), []change{form, withBody("a=b&id=c%2Fd")}, "c/d"},
		"form, compressed":      {idempotency.KeyForm("id"), append(compressed(t, "id=a", time.Unix(1, 0)), form), "a"},
		"form, too many fields": {idempotency.KeyForm("id"), []change{form, withBody("id=a" + strings.Repeat("&b", 10000))}, "!"},
		"form, the most fields": {idempotency.KeyForm("id"), []change{form, withBody("id=a" + strings.Repeat("&b", 9999))}, "a"},
		"form, long value":      {idempotency.KeyForm("id"), []change{form, withBody("a=" + strings.Repeat("b", 1<<20) + "&id=a")}, "a"},
		"form, malformed":       {idempotency.KeyForm("id"), []change{form, withBody("id=a&b=%")}, ""},
		"form, a semicolon":     {idempotency.KeyForm("id"), []change{form, withBody("id=a&b;c")}, ""},
		"form, escaped name":    {idempotency.KeyForm("id"), []change{form, withBody("%69d=a+b&&c")}, "a b"},
		"form, without it":      {idempotency.KeyForm("id"), []change{form, withBody("a=b")}, ""},
		"form, twice":           {idempotency.KeyForm("id"), []change{form, withBody("id=a&id=b")}, "!"},
		"no form":               {idempotency.KeyForm("id"), []change{withBody("id=a")}, ""},
		"several":               {several, []change{with("X-Source", "s"), withBody(`{"id":"a"}`)}, "s,a"},
		"several, with a comma": {several, []change{with("X-Source", "s,a"), withBody(`{"id":"b"}`)}, "s%2Ca,b"},
		"several, without one":  {several, []change{with("X-Source", "s"), withBody(`{}`)}, ""},
		"several, too long":     {several, []change{with("X-Source", long), withBody(`{"id":"` + long + `"}`)}, "sha256:"},
		"the first of several":  {either, []change{with("X-Event", "e"), withBody(`{"id":"a"}`)}, "e"},
		"the second of several": {either, []change{withBody(`{"id":"a"}`)}, "a"},
		"the third of several":  {either, []change{form, withBody("id=a")}, "a"},
		"none of several":       {either, []change{withBody("a")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			g := newRig(t, &idempotency.Options{Key: test.key, MaxBody: 16 << 20}, func(w http.ResponseWriter, r *http.Request) {
				if lease, ok := leaseOf(r); ok {
					got, _ = idempotency.KeyPart(lease.Key().Name)
				}
			})
			w := g.send(append(test.sent, with("Idempotency-Key"))...)
			if w.Code != 200 {
				got = "!"
			}
			if got != test.want && (test.want != "sha256:" || !strings.HasPrefix(got, test.want)) {
				t.Errorf("the key is %q, want %q", got, test.want)
			}
		})
	}
}

// TestOneEventForTwoEndpoints: an event runs once at each path.
func TestOneEventForTwoEndpoints(t *testing.T) {
	for name, o := range map[string]*idempotency.Options{
		"header": {Key: idempotency.KeyHeader("Webhook-Id")},
		"JSON":   {Key: idempotency.KeyJSON("id")},
		"preset": webhooks(t, idempotency.AnySender),
	} {
		g := newRig(t, o, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
		for range 2 {
			for _, path := range []string{"/orders", "/mails"} {
				w := g.send(withTarget(path+"?a=b"), with("Idempotency-Key"), with("Webhook-Id", "e1"), withBody(`{"id":"e1"}`))
				if w.Code != 200 || w.Body.String() != path {
					t.Errorf("%s: %s was answered %d %s", name, path, w.Code, w.Body)
				}
			}
		}
		g.ran(2)
	}
}

// TestKeylessRequestsAreLogged: there is one warning, which quotes nothing of the request.
func TestKeylessRequestsAreLogged(t *testing.T) {
	log, logger := newLogger()
	g := newRig(t, &idempotency.Options{Key: idempotency.KeyJSON("id"), Logger: logger}, nil)
	for range 3 {
		g.send(with("Idempotency-Key"), withBody(`{"secret":1}`))
	}
	if text := log.String(); strings.Count(text, "without the key that Options.Key looks for") != 1 || strings.Contains(text, "secret") {
		t.Errorf("the log is\n%s", text)
	}
}

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
