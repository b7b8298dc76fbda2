package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/certificate"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/page"
)

// Config configures a proxy. Make one with Source.Load.
//
// A field with the tag help is a setting: a field of the configuration file and an environment
// variable. Its name is that of the Go field in lower case, with hyphens. These tags describe it:
//
//	flag     that it is a flag, too
//	help     what it does
//	arg      the word of help that stands for the value
//	section  of docs/reference/proxy.md, for this setting and those after it
//	words    of which the value is one
//	check    the row of checks that the value, or each element of a list, must pass
//	fixed    that it needs a restart
type Config struct {
	Listen          string        `section:"The process" flag:"yes" fixed:"yes" check:"address" arg:"ADDR" help:"the ADDR to listen on, or unix:PATH for a socket of mode 0660; port 0 takes a free port"`
	TLSCert         string        `flag:"yes" fixed:"yes" arg:"FILE" help:"the PEM FILE of the certificate to serve HTTPS with, read again when it changes (default off)"`
	TLSKey          string        `flag:"yes" fixed:"yes" arg:"FILE" help:"the PEM FILE of the certificate's key"`
	Admin           string        `flag:"yes" fixed:"yes" check:"address" arg:"ADDR" help:"the ADDR of /healthz, /readyz, /version, /metrics and POST /reload, which need no credential (default off); unix:PATH for a socket of mode 0600"`
	AdminTLS        bool          `fixed:"yes" help:"serve the admin address over HTTPS too, with the same certificate"`
	AdminTokens     string        `arg:"FILE" help:"the FILE of credentials for the page of the admin address, as dibs serve has it; without one, only this host sees the page"`
	AdminUserHeader string        `fixed:"yes" check:"field" arg:"FIELD" help:"the header FIELD in which a single sign-on names its user; its users see the page"`
	AdminUserAct    bool          `fixed:"yes" help:"users of the single sign-on may release, forget and resolve keys"`
	AdminShowBodies bool          `fixed:"yes" help:"show the bodies of records on the page, to those who may act"`
	Store           string        `flag:"yes" fixed:"yes" arg:"URL" help:"the URL of the store"`
	Namespace       string        `flag:"yes" fixed:"yes" check:"namespace" arg:"NAME" help:"the NAME that keeps these keys apart from others in the store"`
	Drain           time.Duration `flag:"yes" help:"how long requests and upgraded connections may take to finish after SIGTERM"`
	DrainDelay      time.Duration `help:"how long the proxy accepts requests after SIGTERM, while /readyz says 503, before it drains"`
	AccessLog       bool          `flag:"yes" help:"log each request to stderr"`
	LogFormat       string        `flag:"yes" fixed:"yes" words:"text,json" arg:"FORMAT" help:"the FORMAT of the log on stderr: text or json"`
	LogLevel        string        `words:"debug,info,warn,error" arg:"LEVEL" help:"the least LEVEL that is logged: debug, info, warn or error"`

	// Policy is for requests that match no route. A route inherits what it does not set.
	Policy

	// Routes are tried in order. The first that matches serves the request.
	Routes []Route

	source *Source // that a reload loads again
}

// Route is a policy for some requests.
type Route struct {
	Host hostPattern `arg:"HOST" help:"the HOST that requests name, with its port or for every port; *. before it stands for one or more labels (default any)"`
	Path pattern     `arg:"PATTERN" help:"the PATTERN of paths: * is one segment, ** any number of segments (default any)"`
	Policy

	// Only are the methods that the route is for, which it sets itself; nil for all. The methods that
	// it inherits say only what is guarded.
	Only []string

	place string // in the file
}

// Policy configures what happens to the requests of a route. A field that idempotency.Options has too
// is that option.
type Policy struct {
	Upstream       string   `section:"Which requests" flag:"yes" check:"upstream" arg:"URL" help:"the URL of the origin: http://, https://, h2c:// or unix:PATH"`
	Guard          bool     `help:"guard requests that carry a key"`
	Methods        []string `check:"method" arg:"LIST" help:"guard only these methods, a LIST (default all but GET, HEAD, OPTIONS and TRACE)"`
	RequireKey     bool     `flag:"yes" help:"refuse requests without a key if their method is guarded"`
	For            string   `flag:"yes" words:"presets" arg:"PRESET" help:"a PRESET of key, scope, fingerprint, keep and wait for an endpoint that receives webhooks, such as stripe, or webhook; or mcp, for calls of tools (Model Context Protocol)"`
	Forwarded      bool     `help:"send the client's address, host and protocol to the origin in X-Forwarded-For, -Host and -Proto, in place of what the client says of them"`
	TrustedProxies []string `check:"trusted" arg:"LIST" help:"the IP addresses and networks of gateways, a LIST such as 10.0.0.0/8, or unix for the peers of a Unix socket; sets forwarded, keeps what these say, and adds their address (default none)"`
	CORS           []string `check:"page" arg:"LIST" help:"let pages in browsers use keys: a LIST of the pages that may read refusals, such as https://shop.example (default off)"`
	Errors         string   `words:"errors" arg:"SHAPE" help:"the SHAPE of refusals: problem (RFC 9457), stripe, acp (Agentic Commerce Protocol), ucp (Universal Commerce Protocol), jsonapi or jsonrpc"`

	Key               []string           `section:"The key" flag:"yes" check:"key" arg:"LIST" help:"take the key from elsewhere, a LIST of header:NAME, json:FIELD and form:FIELD; | separates alternatives"`
	StrictKey         bool               `help:"refuse keys that are not quoted strings"`
	Scope             []string           `flag:"yes" check:"scope" arg:"LIST" help:"what tells the owners of keys apart, a LIST of credentials (Authorization, X-Api-Key and the like), authorization, header:NAME and cookie:NAME; or none. Requests without any of them share keys"`
	ToolWindows       []string           `check:"window" arg:"LIST" help:"with for mcp, the tools whose equal calls are one for a time, a LIST of TOOL=DURATION, such as charge=10m (default none)"`
	KeyPer            idempotency.KeyPer `flag:"yes" words:"principal,path,request" arg:"WHAT" help:"WHAT names a run beside the key: principal (another request under the key is refused), path (at another path the key is new), or request (requests that differ share a key, and each runs once) (default principal; path with key)"`
	Fingerprint       []string           `check:"fingerprint" arg:"LIST" help:"compare requests loosely, a LIST of json, multipart and query-order; or key, to compare only the key"`
	FingerprintFields []string           `arg:"LIST" help:"compare only these fields of a JSON or form body, a LIST"`

	Wait           time.Duration     `section:"While it runs" flag:"yes" help:"how long a duplicate waits for the running request before it is refused"`
	ConflictStatus int               `arg:"STATUS" help:"the STATUS that refuses a duplicate of a running request, 400 to 499"`
	MismatchStatus int               `arg:"STATUS" help:"the STATUS that refuses another request under a used key, 400 to 499"`
	Lease          time.Duration     `flag:"yes" help:"how long a key stays taken after the proxy that holds it crashed, at least 1s"`
	OnCrash        idempotency.Crash `flag:"yes" words:"takeover,at-most-once" arg:"WHAT" help:"WHAT follows a run with an unknown outcome: takeover (run again) or at-most-once"`
	HandlerLimit   time.Duration     `flag:"yes" help:"how long the origin may take for a guarded request"`
	ConnectTimeout time.Duration     `help:"how long connecting to the origin may take"`
	MaxConcurrent  int               `arg:"NUMBER" help:"how many requests with a key are served at once, a NUMBER; a further one gets 503. Each route counts its own (default no bound)"`
	MaxBodyMemory  int64             `arg:"SIZE" help:"how many bytes the bodies of requests with a key and their answers take at once, a SIZE. A request whose body finds no room gets 503. All routes share it (default half of GOMEMLIMIT, or 256MiB without one)"`
	MaxBody        int64             `flag:"yes" arg:"SIZE" help:"the largest body of a guarded request, a SIZE in bytes, KiB or MiB"`
	BodyTimeout    time.Duration     `help:"how long the client may pause while it sends the body of a guarded request, or take for 16KiB of the answer"`

	Retention     time.Duration        `section:"The answer" flag:"yes" help:"how long answers are stored"`
	Keep          []string             `flag:"yes" arg:"LIST" help:"store answers with these statuses only, a LIST such as 2xx,404; default among others is the default (2xx, 3xx and 4xx without 401, 407, 408, 409, 423, 425 and 429)"`
	MaxStored     int64                `arg:"SIZE" help:"the largest body of an answer that is stored, a SIZE"`
	OnOversize    idempotency.Oversize `words:"tombstone,rerun" arg:"WHAT" help:"WHAT a larger answer leaves: tombstone (retries get 410) or rerun (retries run again)"`
	KeepSetCookie bool                 `help:"store and replay Set-Cookie"`
	NotStored     []string             `arg:"LIST" help:"further response fields that are not stored, a LIST"`
	KeyRing       string               `flag:"yes" arg:"FILE" help:"encrypt stored answers with the key ring in a FILE, or in an environment variable, as env:NAME"`

	StoreTimeout   time.Duration            `section:"The store fails" help:"how long the proxy waits for the store"`
	OnStoreFailure idempotency.StoreFailure `flag:"yes" words:"closed,open" arg:"WHAT" help:"WHAT happens while the store does not answer: closed (refuse with 503) or open (run unguarded)"`

	ring   *idempotency.KeyRing // of KeyRing, read by check
	preset *idempotency.Options // of For; nil without
}

// defaults returns the configuration before anything is set.
func defaults() Config {
	return Config{Listen: "127.0.0.1:8080", Drain: 30 * time.Second, AccessLog: true, LogFormat: "text", LogLevel: "info", Policy: Policy{
		Guard:          true,
		Scope:          []string{idempotency.ScopeCredentials.String()},
		ConnectTimeout: 5 * time.Second,
		Errors:         "problem",
		Lease:          dibs.DefaultTTL,
		Retention:      idempotency.DefaultRetention,
		ConflictStatus: idempotency.DefaultConflictStatus,
		MismatchStatus: idempotency.DefaultMismatchStatus,
		BodyTimeout:    idempotency.DefaultBodyTimeout,
		MaxBody:        idempotency.DefaultMaxBody,
		MaxStored:      idempotency.DefaultMaxStored,
		OnOversize:     idempotency.Tombstone,
		OnCrash:        idempotency.TakeOver,
		OnStoreFailure: idempotency.FailClosed,
		StoreTimeout:   idempotency.DefaultStoreTimeout,
		HandlerLimit:   idempotency.DefaultHandlerLimit,
	}}
}

// MaxStoreTimeout returns the longest time that a guarded request may wait for the store, at least
// the default of store-timeout. A client whose calls end earlier is not for this proxy.
func (c *Config) MaxStoreTimeout() time.Duration {
	longest := idempotency.DefaultStoreTimeout
	for _, r := range c.guarded() {
		longest = max(longest, r.StoreTimeout)
	}
	return longest
}

// users returns the single sign-on of the page for operators.
func (c *Config) users() page.SingleSignOn {
	return page.SingleSignOn{Header: c.AdminUserHeader, Act: c.AdminUserAct}
}

// presetMCP is the preset for the Model Context Protocol.
const presetMCP = "mcp"

// presets are the names of all presets.
var presets = append(idempotency.WebhookSenders(), presetMCP)

// use sets what a preset stands for, if there is one of that name. Each of these can be set to something
// else after that.
func (p *Policy) use(name string) {
	if !slices.Contains(presets, name) {
		return
	}
	p.For, p.preset = name, idempotency.MCPOptions()
	p.Scope, p.Fingerprint = defaults().Scope, nil
	if name != presetMCP {
		p.preset, _ = idempotency.WebhookOptions(name) // the name is one of presets
		p.Scope, p.Fingerprint = []string{"none"}, []string{"key"}
	} else {
		p.OnCrash, p.Errors = p.preset.OnCrash, "jsonrpc"
	}
	p.Key, p.ToolWindows = nil, nil
	p.Keep, p.Wait = p.preset.Keep, p.preset.Wait
}

// options returns the options of the middleware.
func (p *Policy) options() *idempotency.Options {
	o := &idempotency.Options{
		KeyRing: p.ring, WriteProblem: problemWriters[p.Errors],
		Fingerprint: idempotency.FingerprintOptions{
			CanonicalJSON: slices.Contains(p.Fingerprint, "json"),
			Multipart:     slices.Contains(p.Fingerprint, "multipart"),
			SortQuery:     slices.Contains(p.Fingerprint, "query-order"),
			KeyAlone:      slices.Contains(p.Fingerprint, "key"),
			Fields:        p.FingerprintFields,
		},
	}
	from, to := reflect.ValueOf(p).Elem(), reflect.ValueOf(o).Elem()
	for f, v := range from.Fields() {
		if option := to.FieldByName(f.Name); f.IsExported() && option.IsValid() && option.Type() == f.Type {
			option.Set(v)
		}
	}
	if p.preset != nil {
		o.Key, o.MCP = p.preset.Key, p.preset.MCP
	}
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
	if o.MCP != nil && len(p.ToolWindows) > 0 {
		windows := make(map[string]time.Duration)
		for _, text := range p.ToolWindows {
			tool, window, _ := toolWindow(text)
			windows[tool] = window
		}
		o.MCP = &idempotency.MCP{ToolWindows: windows}
	}
	return o
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

// A fault is an error of a setting: its value is wrong with the others, or it is missing.
type fault struct{ setting, message string }

func (e *fault) Error() string { return e.setting + ": " + e.message }

// check returns the faults of the top of a file with some routes.
func (c *Config) check(routes bool) (all []*fault) {
	wrong := func(setting, message string, args ...any) {
		all = append(all, &fault{setting, fmt.Sprintf(message, args...)})
	}
	if c.Upstream == "" && !routes {
		wrong("upstream", "it is missing; name the origin, as in --upstream http://127.0.0.1:3000")
	}
	if listen, admin := addressOf(c.Listen), addressOf(c.Admin); c.Admin != "" && listen.excludes(admin) {
		if listen.port == onSocket {
			wrong("admin", "%s is the socket of listen; choose another path", c.Admin)
		} else {
			wrong("admin", "%s has the port of listen, %s; choose another port", c.Admin, c.Listen)
		}
	}
	switch {
	case c.TLSCert == "" && c.TLSKey != "":
		wrong("tls-key", "it needs tls-cert")
	case c.TLSCert != "" && c.TLSKey == "":
		wrong("tls-cert", "it needs tls-key")
	case c.TLSCert != "":
		if _, err := certificate.New(c.TLSCert, c.TLSKey, nil); err != nil {
			wrong("tls-cert", "%v", err)
		}
	case c.AdminTLS:
		wrong("admin-tls", "it needs tls-cert and tls-key")
	}
	if check := c.source.CheckStore; check != nil && c.Store != "" {
		if err := check(c.Store); err != nil {
			wrong("store", "%v", err)
		}
	}
	if c.AdminTokens != "" {
		if _, err := credential.Read(c.AdminTokens); err != nil {
			wrong("admin-tokens", "%v", err)
		}
	}
	return append(all, c.Policy.check(c.Listen)...)
}

// check returns the faults of a policy of a proxy that listens at an address.
func (p *Policy) check(listen string) (all []*fault) {
	if p.Upstream != "" && addressOf(listen).reachedBy(originOf(p.Upstream)) {
		all = append(all, &fault{"upstream", fmt.Sprintf("it is where the proxy itself listens, %s; name the address of the origin", listen)})
	}
	for _, part := range p.Scope {
		isScope := func(text string) bool { return strings.EqualFold(text, part) }
		if strings.HasPrefix(part, "header:") && slices.ContainsFunc(strings.Split(strings.Join(p.Key, "|"), "|"), isScope) {
			all = append(all, &fault{"scope", fmt.Sprintf("%s is the key, and a scope says whose the key is; name another header", part)})
		}
	}
	usual := defaults().Policy
	for i, u := range settingsOf(&usual) {
		if s := settingsOf(p)[i]; s.field.CanInt() && s.field.IsZero() && !u.field.IsZero() {
			all = append(all, &fault{s.name, "it is 0; leave it out for the default, " + u.text()}) // which the guard takes for 0
		}
	}
	if len(p.Scope) == 0 {
		all = append(all, &fault{"scope", "it is empty; name what tells owners of keys apart, or write none"})
	}
	var err error
	if p.ring, err = ReadKeyRing(p.KeyRing); err != nil {
		all = append(all, &fault{"key-ring", err.Error()})
	}
	return append(all, p.refusals()...)
}

// refusals returns what the guard refuses. Of the methods of a route without a guard it refuses none,
// because they only say which requests the route is for.
func (p *Policy) refusals() (all []*fault) {
	o := p.options()
	if !p.Guard {
		o.Methods = nil
	}
	if o.MCP == nil && len(p.ToolWindows) > 0 {
		all = append(all, &fault{"tool-windows", "it has no effect without for mcp"})
	}
	joined, _ := o.Validate().(interface{ Unwrap() []error })
	if joined == nil {
		return all
	}
	for _, err := range joined.Unwrap() {
		e, ok := errors.AsType[*idempotency.OptionError](err)
		if !ok {
			continue // Validate returns no other errors
		}
		reason := e.Reason
		for _, size := range []any{e.Value, e.Least, e.Most} {
			if n, ok := size.(int64); ok {
				reason = strings.ReplaceAll(reason, fmt.Sprint(n), quantity.SizeText(n))
			}
		}
		switch {
		case e.Field == "Fingerprint" && e.With == e.Field:
			reason = "key cannot be used together with others"
		case e.With == "MCP":
			reason = strings.ReplaceAll(reason, e.With, "for mcp")
		case e.With != "":
			reason = strings.ReplaceAll(reason, e.With, settingOf(e.With))
		}
		all = append(all, &fault{settingOf(e.Field), reason})
	}
	return all
}

// check returns the faults of a route that has others before it.
func (r *Route) check(before []Route, listen string) (all []*fault) {
	if r.Upstream == "" {
		all = append(all, &fault{"upstream", "it is missing, here and at the top"})
	}
	for i := range before {
		if b := &before[i]; b.covers(r) {
			all = append(all, &fault{"path", fmt.Sprintf("the route %s is never used, because the route %s before it (%s) has all its requests; move it up, or remove it",
				r.title(), b.title(), b.place)})
			break
		}
	}
	return append(all, r.Policy.check(listen)...)
}

// covers reports whether each part of r is for everything, or the same as that of other.
func (r *Route) covers(other *Route) bool {
	return (len(r.Only) == 0 || slices.Equal(r.Only, other.Only)) &&
		(r.Host.text == "" || r.Host == other.Host) &&
		(r.Path.text == "" || r.Path.text == "/**" || r.Path.text == other.Path.text)
}

// title names the route in an error, as it is written.
func (r *Route) title() string {
	words := []string{strings.Join(r.Only, ","), r.Host.text + r.Path.text}
	words = slices.DeleteFunc(words, func(s string) bool { return s == "" })
	return cmp.Or(strings.Join(words, " "), "for every request")
}

// errorShapes are the names of problemWriters.
var errorShapes = slices.Sorted(maps.Keys(problemWriters))
