package conform

import (
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
	// Stripe is what Stripe documents of its API: a key is any text of up to 255 characters, a
	// reused key is refused with 400, a 5xx is stored, and refusals have documents of their own.
	Stripe Profile = "stripe"
	// Dibs is the whole list.
	Dibs Profile = "dibs"
)

// Profiles are all profiles.
var Profiles = []Profile{Draft, Dibs, Stripe}

// terms are the profile and the options together.
type terms struct {
	profile  Profile
	mismatch []int // statuses that refuse another request under the same key
	conflict []int // that refuse a duplicate while the first one runs
	has      map[need]bool
}

// termsOf returns the terms of validated options.
func termsOf(o *Options) terms {
	t := terms{
		profile:  o.Profile,
		mismatch: []int{http.StatusUnprocessableEntity},
		conflict: []int{http.StatusConflict},
	}
	keeps := o.Keeps5xx
	if o.Profile == Stripe {
		t.mismatch = []int{http.StatusBadRequest}
		keeps = true
	}
	if o.ConflictStatus != 0 {
		t.conflict = []int{o.ConflictStatus}
	}
	wired := o.Origin.Addr() != ""
	t.has = map[need]bool{
		always:         true,
		needsRequired:  o.RequireKey,
		needsOptional:  !o.RequireKey,
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

// notStripe are cases of the draft and of practice that Stripe does not document, or documents
// otherwise.
var notStripe = []string{
	"key-parameters", "key-escapes", "malformed-unbalanced", "malformed-list", "malformed-lines", "malformed-trailing",
	"malformed-escape", "malformed-control", "malformed-non-ascii", "malformed-bare-space", "malformed-problem",
	"mismatch-method", "mismatch-problem", "running-problem", "running-retry-after", "running-mismatch", "patch",
}

// skips returns why a case is skipped, or "".
func (t *terms) skips(c *Case, o *Options) string {
	switch {
	case len(o.Only) > 0 && !slices.Contains(o.Only, c.ID):
		return "not asked for (--only)"
	case slices.Contains(o.Skip, c.ID):
		return "left out (--skip)"
	case !t.has[c.needs]:
		return "needs " + string(c.needs)
	case t.profile != Dibs && c.Level == Extension,
		t.profile == Draft && c.Level == Practice,
		t.profile == Stripe && slices.Contains(notStripe, c.ID):
		return fmt.Sprintf("not in the profile %s", t.profile)
	}
	return ""
}

// profileNames lists the profiles, for messages.
func profileNames() string {
	names := make([]string, len(Profiles))
	for i, p := range Profiles {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}
