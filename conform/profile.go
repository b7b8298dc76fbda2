package conform

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Profile names what a target sets out to do.
type Profile string

// The profiles.
const (
	// Draft is the IETF draft and the RFCs around it: the cases that must or should pass.
	Draft Profile = "draft"
	// Stripe is what Stripe documents of its API: keys are any text of up to 255
	// characters, a reused one is refused with 400, what failed with 5xx is kept, and
	// refusals are documents of its own.
	Stripe Profile = "stripe"
	// Dibs is everything in the list.
	Dibs Profile = "dibs"
)

// Profiles are all profiles.
var Profiles = []Profile{Draft, Dibs, Stripe}

// terms are what a profile comes to, after the options.
type terms struct {
	profile  Profile
	mismatch []int // statuses that refuse another request under the same key
	conflict []int // that refuse a duplicate while the first one runs
	has      map[need]bool
}

// termsOf returns those of validated options.
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
	origin, wired := o.Origin.(*Origin)
	wired = wired && origin.Addr() != ""
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

// notStripe are the cases of the draft and of practice that Stripe's documents say
// otherwise about, or nothing.
var notStripe = []string{
	"key-parameters", "key-escapes", "malformed-unbalanced", "malformed-list", "malformed-lines", "malformed-trailing",
	"malformed-escape", "malformed-control", "malformed-non-ascii", "malformed-bare-space", "malformed-problem",
	"mismatch-method", "mismatch-problem", "running-problem", "running-retry-after", "running-mismatch", "patch",
}

// skips returns why a case is not run under these options; "" when it is.
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
