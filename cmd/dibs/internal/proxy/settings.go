package proxy

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
)

// setting is a row of the tables below. Its name is a flag of dibs proxy and a field of the
// configuration file, and it has an environment variable. Its value says which Go field it sets, and what it accepts.
type setting struct {
	name  string
	value value
	usage string

	section string // of docs/proxy.md, in which it stands
}

// The sections of docs/proxy.md, in their order. Help has the flags in them.
const (
	theProcess    = "The process"
	whichRequests = "Which requests"
	theKey        = "The key"
	whileItRuns   = "While it runs"
	theAnswer     = "The answer"
	theStoreFails = "The store fails"
)

// Sections are the titles under which help shows the flags of a proxy, in this order.
var Sections = []string{theProcess, whichRequests, theKey, whileItRuns, theAnswer, theStoreFails}

// in sets the section of settings.
func in(section string, all []setting) []setting {
	for i := range all {
		all[i].section = section
	}
	return all
}

// variable returns the name of the setting's environment variable. It does not begin with
// DIBS_ alone, because dibs run sets DIBS_KEY and DIBS_NAMESPACE for its command, which may be
// a proxy. DIBS_STORE is for all commands.
func (s setting) variable() string {
	if s.name == "store" {
		return "DIBS_STORE"
	}
	return "DIBS_PROXY_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// settings is the table of what can be set once for the whole proxy. What can be set for
// a route can be set here too.
func (c *Config) settings() []setting {
	return append(in(theProcess, []setting{
		{name: "listen", value: text(&c.Listen, checkAddress), usage: "the `ADDR` to listen on; port 0 takes a free port"},
		{name: "tls-cert", value: text(&c.TLSCert, nil), usage: "the PEM `FILE` of the certificate to serve HTTPS with, read again when it changes (default off)"},
		{name: "tls-key", value: text(&c.TLSKey, nil), usage: "the PEM `FILE` of the certificate's key"},
		{name: "admin", value: text(&c.Admin, checkAddress), usage: "the `ADDR` of /healthz, /readyz, /version, /metrics and POST /reload, which need no credential (default off)"},
		{name: "admin-tls", value: yes(&c.AdminTLS), usage: "serve the admin address over HTTPS too, with the same certificate"},
		{name: "admin-tokens", value: text(&c.AdminTokens, nil), usage: "the `FILE` of credentials for the page of the admin address, as dibs serve has it; without one, only this host sees the page"},
		{name: "admin-user-header", value: text(&c.AdminUsers.Header, checkField), usage: "the header `FIELD` in which a single sign-on names its user; its users see the page"},
		{name: "admin-user-act", value: yes(&c.AdminUsers.Act), usage: "users of the single sign-on may release, forget and settle keys"},
		{name: "admin-show-bodies", value: yes(&c.AdminShowBodies), usage: "show the bodies of records on the page, to those who may act"},
		{name: "store", value: text(&c.Store, c.checkStore), usage: "the `URL` of the store"},
		{name: "namespace", value: text(&c.Namespace, checkNamespace), usage: "the `NAME` that keeps these keys apart from others in the store"},
		{name: "drain", value: span(&c.Drain, atLeast(0)), usage: "how long requests and upgraded connections may take to finish after SIGTERM"},
		{name: "drain-delay", value: span(&c.DrainDelay, atLeast(0)), usage: "how long the proxy accepts requests after SIGTERM, while /readyz says 503, before it drains"},
		{name: "access-log", value: yes(&c.AccessLog), usage: "log each request to stderr"},
		{name: "log-format", value: word(&c.LogFormat, "text", "json"), usage: "the `FORMAT` of the log on stderr: text or json"},
		{name: "log-level", value: word(&c.LogLevel, "debug", "info", "warn", "error"), usage: "the least `LEVEL` that is logged: debug, info, warn or error"},
	}), c.Policy.settings()...)
}

// fixed are the settings that need a restart. A reload that would change one changes nothing.
var fixed = []string{"listen", "tls-cert", "tls-key", "admin", "admin-tls", "admin-user-header", "admin-user-act", "admin-show-bodies", "store", "namespace", "log-format"}

// settings is the table of what can be set for a route.
func (r *Route) settings() []setting {
	return append([]setting{
		{name: "host", value: of(&r.Host, "string", hostPattern.String, parseHost), usage: "the `HOST` that requests name, with its port or for every port; *. before it stands for one or more labels (default any)"},
		{name: "path", value: of(&r.Path, "string", pattern.String, parsePattern), usage: "the `PATTERN` of paths: * is one segment, ** any number of segments (default any)"},
	}, r.Policy.settings()...)
}

// settings is the table of what can be set for the whole proxy and for a route. A value that the guard
// does not take is refused.
func (p *Policy) settings() []setting {
	all := p.rows()
	for i := range all {
		all[i].value = p.validated(all[i])
	}
	return all
}

// rows is the table without what the guard refuses. For a route, methods also says which requests it is
// for.
func (p *Policy) rows() []setting {
	o := &p.Options
	return slices.Concat(
		in(whichRequests, []setting{
			{name: "upstream", value: text(&p.Upstream, checkUpstream), usage: "the `URL` of the origin: http://, https:// or h2c://"},
			{name: "guard", value: yes(&p.Guard), usage: "guard requests that carry a key"},
			{name: "methods", value: list(&o.Methods, checkMethod), usage: "guard only these methods, a `LIST` (default all but GET, HEAD, OPTIONS and TRACE)"},
			{name: "require-key", value: yes(&o.RequireKey), usage: "refuse requests without a key if their method is guarded"},
			{name: "for", value: preset(p), usage: "a `PRESET` of key, scope, fingerprint, keep and wait, for an endpoint that receives webhooks: " + strings.Join(idempotency.WebhookSenders(), ", ") + "; or mcp, for calls of tools (Model Context Protocol)"},
			{name: "forwarded", value: yes(&p.Forwarded), usage: "send the client's address, host and protocol to the origin in X-Forwarded-For, -Host and -Proto, in place of what the client says of them"},
			{name: "trusted-proxies", value: list(&p.TrustedProxies, checkTrusted), usage: "the IP addresses and networks of gateways, a `LIST` such as 10.0.0.0/8: forwarded keeps what these say, and adds their address (default none)"},
			{name: "cors", value: list(&p.CORS, checkPage), usage: "let pages in browsers use keys: a `LIST` of the pages that may read refusals, such as https://shop.example (default off)"},
			{name: "errors", value: word(&p.Errors, slices.Sorted(maps.Keys(problemWriters))...), usage: "the `SHAPE` of refusals: problem (RFC 9457), stripe, acp (Agentic Commerce Protocol), ucp (Universal Commerce Protocol), jsonapi or jsonrpc"},
		}),
		in(theKey, []setting{
			{name: "key", value: list(&p.Key, checkKey), usage: "take the key from elsewhere, a `LIST` of header:NAME, json:FIELD and form:FIELD; | separates alternatives"},
			{name: "strict-key", value: yes(&o.StrictKey), usage: "refuse keys that are not quoted strings"},
			{name: "scope", value: list(&p.Scope, checkScope), usage: "what tells the owners of keys apart, a `LIST` of credentials (Authorization, X-Api-Key and the like), authorization, header:NAME and cookie:NAME; or none. Requests without any of them share keys"},
			{name: "tool-windows", value: toolWindows(&p.ToolWindows), usage: "with for mcp, the tools whose equal calls are one for a time, a `LIST` of TOOL=DURATION, such as charge=10m (default none)"},
			{name: "key-per", value: word(&o.KeyPer, idempotency.KeyPerPrincipal, idempotency.KeyPerPath, idempotency.KeyPerRequest), usage: "`WHAT` names a run beside the key: principal (another request under the key is refused), path (at another path the key is new), or request (requests that differ share a key, and each runs once) (default principal; path with key)"},
			{name: "fingerprint", value: list(&p.Fingerprint, checkFingerprint), usage: "compare requests loosely, a `LIST` of json, multipart and query-order; or key, to compare only the key"},
			{name: "fingerprint-fields", value: list(&o.Fingerprint.Fields, nil), usage: "compare only these fields of a JSON or form body, a `LIST`"},
		}),
		in(whileItRuns, []setting{
			{name: "wait", value: span(&o.Wait, nil), usage: "how long a duplicate waits for the running request before it is refused"},
			{name: "conflict-status", value: number(&o.ConflictStatus), usage: "the `STATUS` that refuses a duplicate of a running request, 400 to 499"},
			{name: "mismatch-status", value: number(&o.MismatchStatus), usage: "the `STATUS` that refuses another request under a used key, 400 to 499"},
			{name: "lease", value: span(&o.Lease, nil), usage: "how long a key stays taken after the proxy that holds it crashed, at least 1s"},
			{name: "on-crash", value: word(&o.OnCrash, idempotency.TakeOver, idempotency.AtMostOnce), usage: "`WHAT` follows a run with an unknown outcome: takeover (run again) or at-most-once"},
			{name: "handler-timeout", value: span(&o.HandlerLimit, nil), usage: "how long the origin may take for a guarded request"},
			{name: "connect-timeout", value: span(&p.ConnectTimeout, atLeast(time.Millisecond)), usage: "how long connecting to the origin may take"},
			{name: "max-concurrent", value: number(&o.MaxConcurrent), usage: "how many requests with a key are served at once, a `NUMBER`; a further one gets 503. Each route counts its own (default no bound)"},
			{name: "max-body-memory", value: size(&o.MaxBodyMemory), usage: "how many bytes of bodies are in memory at once, a `SIZE`: of requests with a key, and max-stored for each that runs. A request that needs more gets 503. Each route counts its own (default no bound)"},
			{name: "max-body", value: size(&o.MaxBody), usage: "the largest body of a guarded request, a `SIZE` in bytes, KiB or MiB"},
			{name: "body-timeout", value: span(&o.BodyTimeout, nil), usage: "how long the client may pause while it sends the body of a guarded request, or take for 16KiB of the answer"},
		}),
		in(theAnswer, []setting{
			{name: "retention", value: span(&o.Retention, nil), usage: "how long answers are stored"},
			{name: "keep", value: list(&o.Keep, nil), usage: "store answers with these statuses only, a `LIST` such as 2xx,404; default among others is the default (2xx, 3xx and 4xx without 401, 407, 408, 409, 423, 425 and 429)"},
			{name: "max-stored", value: size(&o.MaxStored), usage: "the largest body of an answer that is stored, a `SIZE`"},
			{name: "on-oversize", value: word(&o.OnOversize, idempotency.Tombstone, idempotency.Rerun), usage: "`WHAT` a larger answer leaves: tombstone (retries get 410) or rerun (retries run again)"},
			{name: "keep-set-cookie", value: yes(&o.KeepSetCookie), usage: "store and replay Set-Cookie"},
			{name: "not-stored", value: list(&o.NotStored, nil), usage: "further response fields that are not stored, a `LIST`"},
			{name: "key-ring", value: keyRing(p), usage: "encrypt stored answers with the key ring in a `FILE`, or in an environment variable, as env:NAME"},
		}),
		in(theStoreFails, []setting{
			{name: "store-timeout", value: span(&o.StoreTimeout, nil), usage: "how long the proxy waits for the store"},
			{name: "on-store-failure", value: word(&o.OnStoreFailure, idempotency.FailClosed, idempotency.FailOpen), usage: "`WHAT` happens while the store does not answer: closed (refuse with 503) or open (run unguarded)"},
		}),
	)
}

// defaults returns the configuration before anything is set.
func defaults() Config {
	return Config{Listen: "127.0.0.1:8080", Drain: 30 * time.Second, AccessLog: true, LogFormat: "text", LogLevel: "info", Policy: Policy{
		Guard:          true,
		Scope:          []string{idempotency.ScopeCredentials.String()},
		ConnectTimeout: 5 * time.Second,
		Errors:         "problem",
		Options: idempotency.Options{
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
			Label:          "dibs proxy",
		},
	}}
}

// The annotations of flags.
const (
	sectionOf = "dibs_section"
	wordsOf   = "dibs_words"
)

// Section returns the title under which help shows a flag; "" if it is no setting.
func Section(f *pflag.Flag) string { return strings.Join(f.Annotations[sectionOf], "") }

// Words returns the words of which a flag is one; nil if it accepts others.
func Words(f *pflag.Flag) []string { return f.Annotations[wordsOf] }

// bind makes each setting a flag, unless fs has a flag of that name already.
func bind(fs *pflag.FlagSet, all []setting) {
	for _, s := range all {
		f := fs.Lookup(s.name)
		if f == nil {
			f = fs.VarPF(s.value.filled(), s.name, "", s.usage)
			f.NoOptDefVal = s.value.alone
		}
		f.Annotations = map[string][]string{sectionOf: {s.section}}
		if s.value.words != nil {
			f.Annotations[wordsOf] = s.value.words
		}
	}
}
