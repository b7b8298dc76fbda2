package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

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
