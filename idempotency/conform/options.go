package conform

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Defaults of Options.
const (
	DefaultTimeout  = 20 * time.Second
	DefaultParallel = 8
)

// Options say what to check. Target and either Origin or Service are needed. Every other zero field
// has a default.
type Options struct {
	// Target is the URL of the implementation, http:// or https://, with a path if it guards
	// only what is below one. It must forward to Origin. With Service it is the URL of the requests.
	Target string
	// Origin is the server behind the target.
	Origin *Origin
	// Service says that the target answers by itself, and forwards nothing. Then a case is judged
	// only if the answers show what it asks for; the others are NotJudged. Requests run at the
	// service: take one for tests.
	Service bool
	// Body is the JSON of the usual request to a Service, and OtherBody that of another request that
	// it accepts. Default: {"amount":1200} and {"amount":1300}.
	Body, OtherBody string

	// Profile is what the target sets out to do. Default: Draft.
	Profile Profile
	// RequireKey says that the target refuses requests without a key. With ACP it does.
	RequireKey bool
	// StrictKey says that it refuses keys without quotes.
	StrictKey bool
	// Keeps5xx says that it stores answers of 500 and more. With Stripe it does.
	Keeps5xx bool
	// ConflictStatus is its status for a duplicate while the first request runs. Default: 409.
	ConflictStatus int
	// MismatchStatus is its status for another request under the same key. Default: what the
	// profile says, 422 with Draft and Dibs.
	MismatchStatus int
	// Restart stops the target, starts it again, and returns when it serves. Default: nil, and
	// the case is skipped.
	Restart func(context.Context) error

	// Only are the IDs of the cases to run, if not empty. Skip are those to leave out.
	Only, Skip []string
	// Levels are the levels of the cases to run, if not empty.
	Levels []Level
	// Progress, unless nil, is called after each case, by one goroutine at a time: how many of all
	// cases are done, and how many of them failed.
	Progress func(done, all, failed int)
	// Header is added to every request, for example credentials.
	Header http.Header

	// Timeout bounds each case. At least 1 s. Default: DefaultTimeout.
	Timeout time.Duration
	// Parallel is how many cases run at once. Default: DefaultParallel.
	Parallel int
}

// withDefaults returns a validated copy. An error names the field.
func (o *Options) withDefaults() (Options, *url.URL, error) {
	var r Options
	if o != nil {
		r = *o
	}
	r.Profile = cmp.Or(r.Profile, Draft)
	r.Timeout = cmp.Or(r.Timeout, DefaultTimeout)
	r.Parallel = cmp.Or(r.Parallel, DefaultParallel)
	r.Header = r.Header.Clone()
	u, err := url.Parse(r.Target)
	switch {
	case r.Target == "":
		return r, nil, errors.New("conform: Options.Target is empty; it must be the URL of the service to check")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return r, nil, fmt.Errorf("conform: Options.Target: %q is not a URL with http:// or https:// and a host", r.Target)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return r, nil, fmt.Errorf("conform: Options.Target: %s may have a host, a port and a path only; credentials go into Header", u.Redacted())
	}
	if r.Service {
		r.OtherBody = cmp.Or(r.OtherBody, `{"amount":1300}`)
	}
	if err := r.checkService(); err != nil {
		return r, nil, err
	}
	r.Body = cmp.Or(r.Body, `{"amount":1200}`)
	return r, u, r.validate()
}

func (o *Options) validate() error {
	all := casesOf(o.Profile)
	for _, list := range []struct {
		field string
		ids   []string
	}{{"Only", o.Only}, {"Skip", o.Skip}} {
		for _, id := range list.ids {
			if find(all, id) == nil {
				return fmt.Errorf("conform: Options.%s: the profile %s has no case %q", list.field, o.Profile, id)
			}
		}
	}
	for name, values := range o.Header {
		if slices.ContainsFunc(append(values, name), func(s string) bool { return strings.ContainsAny(s, "\r\n") }) {
			return fmt.Errorf("conform: Options.Header: %q has a line break", name)
		}
	}
	for _, level := range o.Levels {
		if !slices.Contains(Levels, level) {
			return fmt.Errorf("conform: Options.Levels: %q is none of %s", level, levelNames())
		}
	}
	switch {
	case !slices.Contains(Profiles, o.Profile):
		return fmt.Errorf("conform: Options.Profile: %q is none of %s", o.Profile, profileNames())
	case o.ConflictStatus != 0 && (o.ConflictStatus < 400 || o.ConflictStatus > 499):
		return fmt.Errorf("conform: Options.ConflictStatus is %d; it must be 400 to 499", o.ConflictStatus)
	case o.MismatchStatus != 0 && (o.MismatchStatus < 400 || o.MismatchStatus > 499):
		return fmt.Errorf("conform: Options.MismatchStatus is %d; it must be 400 to 499", o.MismatchStatus)
	case o.Timeout < time.Second:
		return fmt.Errorf("conform: Options.Timeout is %v; it must be at least 1s", o.Timeout)
	case o.Parallel < 1:
		return fmt.Errorf("conform: Options.Parallel is %d; it must be at least 1", o.Parallel)
	}
	return nil
}

// ErrService says that the service does not accept the request of the kit.
var ErrService = errors.New("the service does not accept the request")

// The reasons why a case is not judged with Options.Service.
const (
	unjudgedInside = "an origin behind the target (--origin): answers alone do not show it"
	unjudgedAlike  = "answers that differ from run to run, as with an ID in the body, to tell a replay from a second run"
)

// refusalsOutside are the cases that a service shows by its refusals.
var refusalsOutside = []string{
	"key-strict", "key-x-differs", "missing-refused", "missing-problem",
	"malformed-empty", "malformed-unbalanced", "malformed-list", "malformed-trailing", "malformed-escape", "malformed-bare-space",
	"malformed-control", "malformed-non-ascii", "malformed-too-long", "malformed-lines", "malformed-problem",
	"mismatch-body", "mismatch-longer", "mismatch-query", "mismatch-problem",
	"stripe-mismatch", "acp-missing", "acp-mismatch", "acp-echo", "ucp-mismatch",
}

// answersOutside are the cases that a service shows by its answers if each run has another answer.
var answersOutside = []string{
	"replay", "replay-many", "replay-late", "replay-at-once", "replay-together", "replay-marked", "keys-apart",
	"key-uuid", "key-bare", "key-bare-is-quoted", "key-parameters", "key-escapes", "key-padding", "key-inner-space",
	"key-field-case", "key-case", "key-long", "key-x", "missing-runs",
	"mismatch-unharmed", "same-framing", "same-other-fields", "running-race", "body-slow", "body-cut", "restart",
}

// unjudged returns what is missing to judge the case from outside, or "".
func (k *kit) unjudged(c *Case) string {
	switch {
	case !k.options.Service, slices.Contains(refusalsOutside, c.ID):
		return ""
	case !slices.Contains(answersOutside, c.ID):
		return unjudgedInside
	case k.alike:
		return unjudgedAlike
	}
	return ""
}

// outside counts the cases that can be judged from outside.
func outside(cases []Case) (n int) {
	for _, c := range cases {
		if slices.Contains(refusalsOutside, c.ID) || slices.Contains(answersOutside, c.ID) {
			n++
		}
	}
	return n
}

// try sends two requests with two keys, and notes whether their answers differ.
func (k *kit) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.options.Timeout)
	defer cancel()
	t := k.trial(ctx, "probe")
	defer t.end()
	for i := range 2 {
		a := t.send(withKey(t.numbered(i)))
		switch {
		case errors.Is(a.err, ErrTarget):
			return a.err
		case a.err != nil && a.status == 0:
			return fmt.Errorf("%w: %s: %w", ErrTarget, k.target.Host, a.err)
		case a.run() == 0:
			return fmt.Errorf("%w: a POST of %s to %s was answered %v", ErrService, excerpt([]byte(k.options.Body)), k.target.Redacted(), a)
		}
	}
	k.alike = len(t.answers) < 2
	return nil
}

// runOf returns the number of the run that an answer of a service is of: the first answer of the
// case is run 1, and an answer that is not the same is another run. A refusal is of no run.
func (t *trial) runOf(a *reply) int {
	if a.err != nil || a.status < 200 || a.status > 299 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.answers, func(body []byte) bool { return bytes.Equal(body, a.body) })
	if i < 0 {
		i = len(t.answers)
		t.answers = append(t.answers, a.body)
	}
	return i + 1
}

// another changes the body to this one, or to the other body that a service accepts.
func (t *trial) another(body string) change {
	if t.kit.options.Service {
		body = t.kit.options.OtherBody
	}
	return withBody(body)
}

// checkService returns an error that names the option that does not fit.
func (o *Options) checkService() error {
	switch {
	case o.Service && o.Origin != nil:
		return errors.New("conform: Options.Service: the target answers by itself, so there is no Origin; leave one of them out")
	case !o.Service && o.Origin == nil:
		return errors.New("conform: Options.Origin is nil; it must be the origin behind the target, or set Service")
	case !o.Service && o.Body+o.OtherBody != "":
		return errors.New("conform: Options.Body: the kit's own origin takes any body; set Body and OtherBody with Service only")
	case o.Service && strings.TrimSpace(o.Body) == strings.TrimSpace(o.OtherBody):
		return errors.New("conform: Options.OtherBody is Body; it must be another request that the service accepts")
	}
	return nil
}
