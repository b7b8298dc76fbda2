package conform

import (
	"fmt"
	"slices"
)

// Level is the importance of a case.
type Level string

// The levels, the heaviest first.
const (
	// Must: an RFC requires it, or without it a request runs twice or a client gets a wrong
	// answer.
	Must Level = "must"
	// Should: the draft or an RFC recommends it.
	Should Level = "should"
	// Practice: providers of public interfaces document it, and clients rely on it.
	Practice Level = "practice"
	// Extension: dibs promises it beyond that.
	Extension Level = "extension"
)

// Levels are all levels, the most important first.
var Levels = []Level{Must, Should, Practice, Extension}

// Case is one case of the list.
type Case struct {
	// ID names the case, for programs. It never changes its meaning.
	ID string
	// Title says what holds if the case passes.
	Title string
	Level Level
	// Sources say where that is written.
	Sources []Source

	// needs is what the target must do before the case makes sense.
	needs need
	// alone: no other case runs at the same time.
	alone bool
	check func(t *trial)
}

// need is an optional property of the target.
type need string

// What a target can be said to do.
const (
	always         need = ""
	needsRequired  need = "a target that requires keys (--require-key)"
	needsOptional  need = "a target that does not require keys (no --require-key)"
	needsBare      need = "a target that accepts keys without quotes (no --strict-key)"
	needsStrict    need = "a target that refuses keys without quotes (--strict-key)"
	needsFree5xx   need = "a target that does not keep answers of 500 and more (no --keeps-5xx)"
	needsKeep5xx   need = "a target that keeps answers of 500 and more (--keeps-5xx)"
	needsRestart   need = "a way to restart the target (--restart)"
	needsWire      need = "an origin of its own address, reached by HTTP/1.1"
	needsAuthority need = "requests without an Authorization of their own (no such --header)"
)

// Source is a document.
type Source struct {
	Text string
	URL  string
}

// draft is a section of the draft.
func draft(section string) Source {
	return Source{"draft-07 §" + section, "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07#section-" + section}
}

// rfc is a section of an RFC.
func rfc(number int, section string) Source {
	return Source{fmt.Sprintf("RFC %d §%s", number, section), fmt.Sprintf("https://www.rfc-editor.org/rfc/rfc%d#section-%s", number, section)}
}

// What providers say.
var (
	stripe      = Source{"Stripe", "https://docs.stripe.com/api/idempotent_requests"}
	stripeError = Source{"Stripe, errors", "https://docs.stripe.com/error-low-level"}
	adyen       = Source{"Adyen", "https://docs.adyen.com/development-resources/api-idempotency"}
	paypal      = Source{"PayPal", "https://developer.paypal.com/api/rest/reference/idempotency"}
	square      = Source{"Square", "https://developer.squareup.com/docs/working-with-apis/idempotency"}
	worldline   = Source{"Worldline", "https://docs.direct.worldline-solutions.com/integration/api-developer-guide/idempotent-requests"}
	checkout    = Source{"Checkout.com", "https://www.checkout.com/docs/payments/manage-payments/idempotency"}
	zuora       = Source{"Zuora", "https://developer.zuora.com/docs/guides/idempotent-requests"}
	whop        = Source{"Whop", "https://docs.whop.com/developer/api/idempotency"}
	solidgate   = Source{"Solidgate", "https://api-docs.solidgate.com/api/v2/idempotent-requests"}
	mercado     = Source{"Mercado Pago", "https://www.mercadopago.com.br/developers/en/docs/wallet-connect/advanced-payments/idempotency"}
	epay        = Source{"ePay", "https://docs.epay.eu/guides/idempotency-keys"}
	ours        = Source{"dibs", "https://github.com/dibs-go/dibs/blob/main/docs/reference/http.md"}
)

// Section is a part of the list.
type Section struct {
	Title string
	Cases []Case
}

// Sections returns the list of cases in its parts.
func Sections() []Section {
	return []Section{
		{"One run, one answer", onceCases},
		{"The key", keyCases},
		{"Malformed keys", malformedCases()},
		{"Another request under the same key", mismatchCases},
		{"While it runs", runningCases},
		{"Whose key", scopeCases},
		{"Which requests", methodCases},
		{"Which answers are kept", keptCases},
		{"The answer's content", contentCases},
		{"The answer's fields", fieldCases},
		{"On the connection", connectionCases},
		{"When something breaks", failureCases},
		{"Between the target and the origin", rawCases},
	}
}

// Cases returns the whole list, in order.
func Cases() []Case {
	var all []Case
	for _, r := range Sections() {
		all = append(all, r.Cases...)
	}
	return all
}

// find returns the case with that ID, or nil.
func find(cases []Case, id string) *Case {
	if i := slices.IndexFunc(cases, func(c Case) bool { return c.ID == id }); i >= 0 {
		return &cases[i]
	}
	return nil
}

// must returns a case of that level; should, practice and extension do, too.
func must(id, title string, check func(*trial), sources ...Source) Case {
	return Case{ID: id, Title: title, Level: Must, Sources: sources, check: check}
}

func should(id, title string, check func(*trial), sources ...Source) Case {
	return Case{ID: id, Title: title, Level: Should, Sources: sources, check: check}
}

func practice(id, title string, check func(*trial), sources ...Source) Case {
	return Case{ID: id, Title: title, Level: Practice, Sources: sources, check: check}
}

func extension(id, title string, check func(*trial), sources ...Source) Case {
	return Case{ID: id, Title: title, Level: Extension, Sources: sources, check: check}
}

// ifHas returns the case for targets that do what it needs.
func (c Case) ifHas(n need) Case {
	c.needs = n
	return c
}

// byItself returns the case for a run while no other case runs.
func (c Case) byItself() Case {
	c.alone = true
	return c
}
