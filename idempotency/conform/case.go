package conform

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
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

// Profile is what a target sets out to do.
type Profile string

// The profiles.
const (
	// Draft is the IETF draft with its RFCs: the cases that must or should pass.
	Draft Profile = "draft"
	// Dibs is the whole list.
	Dibs Profile = "dibs"
	// Stripe is what Stripe documents of its API.
	Stripe Profile = "stripe"
	// ACP is the Agentic Commerce Protocol's checkout.
	ACP Profile = "acp"
	// UCP is the Universal Commerce Protocol over REST.
	UCP Profile = "ucp"
)

// Profiles are all profiles.
var Profiles = []Profile{Draft, Dibs, Stripe, ACP, UCP}

// An api is what an API documents, where the draft says otherwise or nothing.
type api struct {
	profile  Profile
	name     string
	mismatch int  // the status that refuses another request under the same key
	required bool // a request without a key is refused
	keeps5xx bool
	// without are cases of the draft and of practice that the API does not document, or documents
	// otherwise.
	without []string
	rules   []Case // that the API adds, each with its source
}

// apis are the profiles of APIs. A key of theirs is any text without quotes around it.
var apis = []api{
	{
		profile: Stripe, name: "Stripe", mismatch: http.StatusBadRequest, keeps5xx: true,
		without: append([]string{"mismatch-method", "running-retry-after", "running-mismatch"}, notOfAPIs...),
		rules:   stripeRules,
	},
	{
		profile: ACP, name: "Agentic Commerce Protocol", mismatch: http.StatusUnprocessableEntity, required: true,
		without: append([]string{"mismatch-longer", "mismatch-method", "mismatch-path", "mismatch-query", "missing-problem"}, notOfAPIs...),
		rules:   acpRules,
	},
	{
		profile: UCP, name: "Universal Commerce Protocol", mismatch: http.StatusConflict,
		without: append([]string{"mismatch-method", "mismatch-path", "mismatch-query", "missing-problem"}, notOfAPIs...),
		rules:   ucpRules,
	},
}

// notOfAPIs are cases of the draft's syntax of keys, its documents of refusals, and PATCH.
var notOfAPIs = []string{
	"key-parameters", "key-escapes", "malformed-unbalanced", "malformed-list", "malformed-lines", "malformed-trailing",
	"malformed-escape", "malformed-control", "malformed-non-ascii", "malformed-bare-space", "malformed-problem",
	"mismatch-problem", "running-problem", "patch",
}

// apiOf returns the API of a profile, or nil.
func apiOf(p Profile) *api {
	if i := slices.IndexFunc(apis, func(a api) bool { return a.profile == p }); i >= 0 {
		return &apis[i]
	}
	return nil
}

// casesOf returns the list, and the rules that the profile adds.
func casesOf(p Profile) []Case {
	if a := apiOf(p); a != nil {
		return slices.Concat(Cases(), a.rules)
	}
	return Cases()
}

// terms are the profile and the options together.
type terms struct {
	profile  Profile
	api      *api
	mismatch []int // statuses that refuse another request under the same key
	conflict []int // that refuse a duplicate while the first one runs
	has      map[need]bool
}

// termsOf returns the terms of validated options.
func termsOf(o *Options) terms {
	t := terms{profile: o.Profile, api: apiOf(o.Profile)}
	mismatch, keeps, required := http.StatusUnprocessableEntity, o.Keeps5xx, o.RequireKey
	if t.api != nil {
		mismatch, keeps, required = t.api.mismatch, keeps || t.api.keeps5xx, required || t.api.required
	}
	t.mismatch = []int{cmp.Or(o.MismatchStatus, mismatch)}
	t.conflict = []int{cmp.Or(o.ConflictStatus, http.StatusConflict)}
	wired := o.Service || o.Origin.Addr() != ""
	t.has = map[need]bool{
		always:         true,
		needsRequired:  required,
		needsOptional:  !required,
		needsBare:      !o.StrictKey,
		needsStrict:    o.StrictKey,
		needsFree5xx:   !keeps,
		needsKeep5xx:   keeps,
		needsRestart:   o.Restart != nil,
		needsWire:      wired,
		needsAuthority: o.Header.Get("Authorization") == "",
	}
	return t
}

// skips returns why a case is skipped, or "".
func (t *terms) skips(c *Case, o *Options) string {
	switch {
	case len(o.Only) > 0 && !slices.Contains(o.Only, c.ID):
		return "not asked for (--only)"
	case len(o.Levels) > 0 && !slices.Contains(o.Levels, c.Level):
		return "not asked for (--level)"
	case slices.Contains(o.Skip, c.ID):
		return "left out (--skip)"
	case !t.has[c.needs]:
		return "needs " + string(c.needs)
	case t.profile != Dibs && c.Level == Extension,
		t.profile == Draft && c.Level == Practice,
		t.api != nil && slices.Contains(t.api.without, c.ID):
		return fmt.Sprintf("not in the profile %s", t.profile)
	}
	return ""
}

// levelNames lists the levels, for messages.
func levelNames() string {
	names := make([]string, len(Levels))
	for i, l := range Levels {
		names[i] = string(l)
	}
	return strings.Join(names, ", ")
}

// profileNames lists the profiles, for messages.
func profileNames() string {
	names := make([]string, len(Profiles))
	for i, p := range Profiles {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}

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
