package conform

import (
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
