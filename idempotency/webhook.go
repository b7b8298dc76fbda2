package idempotency

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/content"
)

// AnySender is the sender of WebhookOptions whose events are recognised by headers alone.
const AnySender = "webhook"

// A sender of webhooks, and what names its events.
type sender struct {
	name   string
	header string // that names the event; "" if the body does
	member string // of the JSON body that names the event
	// apart are headers that tell deliveries of one event apart, such as those to two applications
	// at one address. A delivery may lack them.
	apart []string
	// unclear says that other senders may mean something else by the header.
	unclear bool
	page    string // of the sender's documentation
}

// senders is the table of the presets. Each row says what the sender's own documentation says.
var senders = []sender{
	{name: "standard", header: "Webhook-Id", page: "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md"},
	{name: "svix", header: "Svix-Id", page: "https://docs.svix.com/idempotency"},
	{name: "github", header: "X-GitHub-Delivery", apart: []string{"X-GitHub-Hook-ID"}, page: "https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers"},
	{name: "gitlab", header: content.KeyField, page: "https://docs.gitlab.com/user/project/integrations/webhooks/#delivery-headers"},
	{name: "shopify", header: "X-Shopify-Event-Id", apart: []string{"X-Shopify-Shop-Domain", "X-Shopify-Topic"}, page: "https://shopify.dev/docs/apps/build/webhooks/ignore-duplicates"},
	{name: "razorpay", header: "X-Razorpay-Event-Id", page: "https://razorpay.com/docs/webhooks/best-practices"},
	{name: "prolific", header: "X-Event-Id", unclear: true, page: "https://docs.prolific.com/api-reference/webhooks/idempotency-and-the-x-event-id-header"},
	{name: "stripe", member: "id", page: "https://docs.stripe.com/webhooks#handle-duplicate-events"},
	{name: "slack", member: "event_id", page: "https://docs.slack.dev/reference/objects/event-object"},
	{name: "square", member: "event_id", page: "https://developer.squareup.com/docs/webhooks/step4manage"},
	{name: "paypal", member: "id", page: "https://developer.paypal.com/docs/api/webhooks/v1/"},
}

// WebhookSenders returns the names that WebhookOptions knows.
func WebhookSenders() []string {
	names := []string{AnySender}
	for _, s := range senders {
		names = append(names, s.name)
	}
	return names
}

// WebhookHeaders returns the headers that the preset of a sender reads, in canonical form.
func WebhookHeaders(sender string) []string {
	var names []string
	for _, s := range senders {
		if s.header != "" && (s.name == sender || sender == AnySender && !s.unclear) {
			for _, name := range append([]string{s.header}, s.apart...) {
				names = append(names, http.CanonicalHeaderKey(name))
			}
		}
	}
	return names
}

// WebhookOptions returns options for an endpoint that receives webhooks of the sender, which is one
// of WebhookSenders. It returns an error for any other name. Change the options as needed.
//
//   - The key is what the sender's documentation calls the event's id. It counts for one path.
//     With AnySender, the key is in the first header that some sender of the table documents, and
//     never in the body, because the id there may be that of an order or a payment.
//   - All senders share keys (ScopeNone), because signatures differ from attempt to attempt.
//   - A retry may differ in everything but the id. The Logger gets a warning when one does.
//   - Only 2xx answers are kept, so that a retry after any other answer runs again. An
//     event with a false signature thus cannot keep the true one from running.
//   - A duplicate waits for the first for up to 5 s.
//
// A request without the id runs without a guard, and the Logger gets a warning; see RequireKey.
func WebhookOptions(sender string) (*Options, error) {
	o := &Options{
		Scope:       []ScopePart{ScopeNone},
		Fingerprint: FingerprintOptions{KeyAlone: true},
		Keep:        []string{"2xx"},
		Wait:        5 * time.Second,
	}
	if sender == AnySender {
		o.Key = keyOfAnySender
		return o, nil
	}
	for i := range senders {
		if senders[i].name == sender {
			o.Key = senders[i].key
			return o, nil
		}
	}
	return nil, fmt.Errorf("idempotency: %q is not a sender of webhooks; there are %s", sender, strings.Join(WebhookSenders(), ", "))
}

// key derives the key of a request of the sender.
func (s *sender) key(r *http.Request, body io.ReadSeeker) (string, error) {
	values, err := s.values(r, body)
	return content.Join(values), err
}

// values returns what names the event, after what tells its deliveries apart; nothing if the
// request does not name an event.
func (s *sender) values(r *http.Request, body io.ReadSeeker) ([]string, error) {
	of := KeyJSON(s.member)
	if s.header != "" {
		of = KeyHeader(s.header)
	}
	id, err := of(r, body)
	if err != nil || id == "" {
		return nil, err
	}
	var values []string
	for _, name := range s.apart {
		value, err := KeyHeader(name)(r, nil)
		if err != nil && err != content.ErrEmptyKey {
			return nil, err
		}
		values = append(values, value)
	}
	if strings.Join(values, "") == "" {
		return []string{id}, nil
	}
	return append(values, id), nil
}

// keyOfAnySender derives the key from the first header of the table that a request has. The
// sender's name is part of it, because the ids of two senders may be the same.
func keyOfAnySender(r *http.Request, body io.ReadSeeker) (string, error) {
	for i := range senders {
		s := &senders[i]
		if s.header == "" || s.unclear {
			continue
		}
		values, err := s.values(r, body)
		if err != nil || len(values) > 0 {
			return content.Join(append([]string{s.name}, values...)), err
		}
	}
	return "", nil
}
