package conform

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

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
