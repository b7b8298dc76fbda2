package proxy

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/quantity"
)

// Policy configures what happens to the requests of a route. settings.go describes its
// fields.
type Policy struct {
	Upstream       string
	Guard          bool
	For            string
	Key            []string
	Scope          []string
	Fingerprint    []string
	ConnectTimeout time.Duration
	Forwarded      bool
	TrustedProxies []string
	CORS           []string
	KeyRing        string
	Errors         string
	ToolWindows    []string

	// Options has everything else, as the middleware takes it.
	Options idempotency.Options
}

// middleware returns the options of the middleware.
func (p *Policy) middleware() *idempotency.Options {
	o := p.Options
	o.Fingerprint.CanonicalJSON = slices.Contains(p.Fingerprint, "json")
	o.Fingerprint.Multipart = slices.Contains(p.Fingerprint, "multipart")
	o.Fingerprint.SortQuery = slices.Contains(p.Fingerprint, "query-order")
	o.Fingerprint.KeyAlone = slices.Contains(p.Fingerprint, "key")
	o.WriteProblem = problemWriters[p.Errors]
	for _, text := range p.Scope {
		part, _ := scopePart(text) // was checked when it was set
		o.Scope = append(o.Scope, part)
	}
	if len(p.Key) > 0 {
		parts := make([]idempotency.KeyFunc, len(p.Key))
		for i, text := range p.Key {
			parts[i], _ = keyPart(text)
		}
		o.Key = idempotency.KeyOf(parts...)
	}
	for _, text := range p.ToolWindows {
		tool, window, _ := toolWindow(text)
		if o.ToolWindows == nil {
			o.ToolWindows = make(map[string]time.Duration)
		}
		o.ToolWindows[tool] = window
	}
	return &o
}

// problemWriters are the shapes of refusals.
var problemWriters = map[string]idempotency.ProblemWriter{
	"problem": idempotency.WriteProblem,
	"stripe":  idempotency.WriteStripeError,
	"acp":     idempotency.WriteACPError,
	"ucp":     idempotency.WriteUCPError,
	"jsonapi": idempotency.WriteJSONAPIError,
	"jsonrpc": idempotency.WriteJSONRPCError,
}

// check refuses settings that contradict each other.
func (p *Policy) check() *settingError {
	if len(p.Scope) == 0 {
		return &settingError{"scope", "it is empty; name what tells owners of keys apart, or write none"}
	}
	for e := range p.refusals() {
		return e.asSetting()
	}
	return p.checkScope()
}

// checkScope refuses a scope that is the key.
func (p *Policy) checkScope() *settingError {
	for _, part := range p.Scope {
		isScope := func(text string) bool { return strings.EqualFold(text, part) }
		if strings.HasPrefix(part, "header:") && slices.ContainsFunc(strings.Split(strings.Join(p.Key, "|"), "|"), isScope) {
			return &settingError{"scope", fmt.Sprintf("%s is the key, and a scope says whose the key is; name another header", part)}
		}
	}
	return nil
}

// unguarded are the settings that have an effect without a guard.
var unguarded = []string{"host", "path", "upstream", "guard", "methods", "connect-timeout", "forwarded", "trusted-proxies", "cors", "errors"}

// idle returns an error for a setting of these that has no effect because of another one. guard says
// that a guard that is off counts.
func (p *Policy) idle(names []string, guard bool) *settingError {
	for _, row := range p.settings() {
		switch {
		case !slices.Contains(names, row.name) || row.value.String() == "false":
		case guard && !p.Guard && !slices.Contains(unguarded, row.name):
			return &settingError{row.name, "it has no effect, because guard is false; remove it, or set guard to true"}
		case row.name == "strict-key" && (len(p.Key) > 0 || p.Options.Key != nil):
			return &settingError{row.name, "it has no effect, because key or for names another place of the key; remove it"}
		case row.name == "trusted-proxies" && !p.Forwarded:
			return &settingError{row.name, "it has no effect without forwarded; set forwarded to true, or remove it"}
		}
	}
	return nil
}

const presetName = "for"

// preset is the name of a preset. Setting it sets what the preset stands for.
func preset(p *Policy) value {
	v := of(&p.For, "string", func(s string) string { return s }, func(s string) (string, error) {
		if s == p.For {
			return s, nil
		}
		o, scope, fingerprint := idempotency.MCPOptions(), defaults().Scope, []string(nil)
		if s != presetMCP {
			var err error
			if o, err = idempotency.WebhookOptions(s); err != nil {
				return "", fmt.Errorf("%q is no preset; there are %s", s, strings.Join(presets, ", "))
			}
			scope, fingerprint = []string{"none"}, []string{"key"}
		} else {
			p.Options.OnCrash, p.Errors = o.OnCrash, "jsonrpc"
		}
		p.Key, p.Options.Key = nil, o.Key
		p.Scope, p.Fingerprint = scope, fingerprint
		p.Options.Keep, p.Options.Wait, p.Options.MCP, p.ToolWindows = o.Keep, o.Wait, o.MCP, nil
		return s, nil
	})
	v.words = presets
	return v
}

// presetMCP is the preset for the Model Context Protocol.
const presetMCP = "mcp"

// presets are the names of all presets.
var presets = append(idempotency.WebhookSenders(), presetMCP)

// toolWindows is a list of windows, with one for each tool.
func toolWindows(field *[]string) value {
	v := list(field, func(s string) error {
		_, _, err := toolWindow(s)
		return err
	})
	set, setList := v.set, v.setList
	v.set = func(s string) error { return cmp.Or(set(s), oneForEachTool(*field)) }
	v.setList = func(all []string) error { return cmp.Or(setList(all), oneForEachTool(*field)) }
	return v
}

// oneForEachTool refuses a tool with two windows.
func oneForEachTool(windows []string) error {
	seen := map[string]bool{}
	for _, text := range windows {
		tool, _, _ := toolWindow(text)
		if seen[tool] {
			return fmt.Errorf("%q has two windows; remove one", tool)
		}
		seen[tool] = true
	}
	return nil
}

// toolWindow reads an element of ToolWindows.
func toolWindow(s string) (tool string, window time.Duration, err error) {
	i := strings.LastIndexByte(s, '=')
	if i < 1 {
		return "", 0, fmt.Errorf("%q is not TOOL=DURATION, such as charge=10m", s)
	}
	window, err = quantity.Duration(s[i+1:])
	return s[:i], window, err
}

func checkUpstream(s string) error {
	if s == "" {
		return nil
	}
	_, err := upstream.New(s, nil)
	return err
}

// checkNamespace refuses what the client would refuse.
func checkNamespace(s string) error { return dibs.Key{Namespace: s, Name: "any"}.Validate() }

// checkField refuses what is not the name of a header field.
func checkField(s string) error {
	if s != "" && !isName(s) {
		return fmt.Errorf("%q is not the name of a header field, such as X-Forwarded-User", s)
	}
	return nil
}

func checkMethod(s string) error {
	if !isName(s) || strings.ToUpper(s) != s {
		return fmt.Errorf("%q is not a method in capitals, such as POST", s)
	}
	return nil
}

// checkFingerprint refuses what is not an element of Fingerprint.
func checkFingerprint(s string) error {
	if !slices.Contains([]string{"json", "multipart", "query-order", "key"}, s) {
		return fmt.Errorf("%q is none of json, multipart, query-order, key", s)
	}
	return nil
}

func checkScope(s string) error {
	_, err := scopePart(s)
	return err
}

// scopePart reads an element of Scope.
func scopePart(s string) (part idempotency.ScopePart, err error) {
	kind, name, named := strings.Cut(s, ":")
	switch {
	case s == "credentials":
		return idempotency.ScopeCredentials, nil
	case s == "authorization":
		return idempotency.ScopeAuthorization, nil
	case s == "none":
		return idempotency.ScopeNone, nil
	case !named || kind != "header" && kind != "cookie":
		return part, fmt.Errorf("%q is none of credentials, authorization, header:NAME, cookie:NAME, none", s)
	case name == "":
		return part, fmt.Errorf("the name is missing after %q", kind+":")
	case kind == "header":
		return idempotency.ScopeHeader(name), fieldFault(name, idempotency.ScopeFieldFault(name))
	}
	return idempotency.ScopeCookie(name), nil
}

func checkKey(s string) error {
	_, err := keyPart(s)
	return err
}

// brokenEscape is what a JSON pointer has not.
var brokenEscape = regexp.MustCompile(`~([^01]|$)`)

// keyPart reads an element of Key: one place of a key, or several alternatives.
func keyPart(s string) (idempotency.KeyFunc, error) {
	var alternatives []idempotency.KeyFunc
	for text := range strings.SplitSeq(s, "|") {
		kind, name, _ := strings.Cut(text, ":")
		switch {
		case name != "" && kind == "header" && !isName(name):
			return nil, fmt.Errorf("%q is not the name of a header", name)
		case name != "" && kind == "header":
			if err := fieldFault(name, idempotency.KeyFieldFault(name)); err != nil {
				return nil, err
			}
			alternatives = append(alternatives, idempotency.KeyHeader(name))
		case kind == "json" && strings.HasPrefix(name, "/") && brokenEscape.MatchString(name):
			return nil, fmt.Errorf("%q is no JSON pointer (RFC 6901): write ~0 for ~, and ~1 for / in a name", name)
		case name != "" && kind == "json":
			alternatives = append(alternatives, idempotency.KeyJSON(name))
		case name != "" && kind == "form":
			alternatives = append(alternatives, idempotency.KeyForm(name))
		default:
			return nil, fmt.Errorf("%q is none of header:NAME, json:FIELD, form:FIELD", text)
		}
	}
	return idempotency.KeyFirst(alternatives...), nil
}

// isName reports whether s can name a header or a cookie: a token of RFC 9110.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}
