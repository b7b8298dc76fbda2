package proxy

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/idempotency"
)

// setting is a row of the tables below. Its name is a flag of dibs proxy and a field of the
// configuration file, and it has an environment variable. Its value says which Go field it sets, and what it accepts.
type setting struct {
	name  string
	value value
	usage string
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
	return append([]setting{
		{"listen", text(&c.Listen, checkAddress), "the `ADDR` to listen on; port 0 takes a free port"},
		{"tls-cert", text(&c.TLSCert, nil), "the PEM `FILE` of the certificate to serve HTTPS with, read again when it changes (default off)"},
		{"tls-key", text(&c.TLSKey, nil), "the PEM `FILE` of the certificate's key"},
		{"admin", text(&c.Admin, checkAddress), "the `ADDR` of /healthz, /readyz, /version, /metrics and POST /reload (default off)"},
		{"admin-tls", yes(&c.AdminTLS), "serve the admin address over HTTPS too, with the same certificate"},
		{"store", text(&c.Store, c.checkStore), "the `URL` of the store"},
		{"namespace", text(&c.Namespace, checkNamespace), "the `NAME` that keeps these keys apart from others in the store"},
		{"drain", span(&c.Drain, atLeast(0)), "how long requests and upgraded connections may take to finish after SIGTERM"},
		{"drain-delay", span(&c.DrainDelay, atLeast(0)), "how long the proxy accepts requests after SIGTERM, while /readyz says 503, before it drains"},
		{"access-log", yes(&c.AccessLog), "log each request to stderr"},
		{"log-format", word(&c.LogFormat, "text", "json"), "the `FORMAT` of the log on stderr: text or json"},
		{"log-level", word(&c.LogLevel, "debug", "info", "warn", "error"), "the least `LEVEL` that is logged: debug, info, warn or error"},
	}, c.Policy.settings()...)
}

// fixed are the settings that need a restart. A reload that would change one changes nothing.
var fixed = []string{"listen", "tls-cert", "tls-key", "admin", "admin-tls", "store", "namespace", "log-format"}

// settings is the table of what can be set for a route.
func (r *Route) settings() []setting {
	return append([]setting{
		{"host", of(&r.Host, "string", hostPattern.String, parseHost), "the `HOST` that requests name, with its port or for every port; *. before it stands for one or more labels (default any)"},
		{"path", of(&r.Path, "string", pattern.String, parsePattern), "the `PATTERN` of paths: * is one segment, ** any number of segments (default any)"},
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
	return []setting{
		{"upstream", text(&p.Upstream, checkUpstream), "the `URL` of the origin: http://, https:// or h2c://"},
		{"guard", yes(&p.Guard), "guard requests that carry a key"},
		{"methods", list(&o.Methods, checkMethod), "guard only these methods, a `LIST` (default all but GET, HEAD, OPTIONS and TRACE)"},
		{"require-key", yes(&o.RequireKey), "refuse requests without a key if their method is guarded"},
		{"strict-key", yes(&o.StrictKey), "refuse keys that are not quoted strings"},
		{"ignore-x-key", yes(&o.IgnoreXKey), "ignore X-Idempotency-Key"},
		{"for", preset(p), "a `PRESET` of key, scope, fingerprint, keep and wait, for an endpoint that receives webhooks: " + strings.Join(idempotency.WebhookSenders(), ", ")},
		{"key", list(&p.Key, checkKey), "take the key from elsewhere, a `LIST` of header:NAME, json:FIELD and form:FIELD; | separates alternatives"},
		{"scope", list(&p.Scope, checkScope), "what tells the owners of keys apart, a `LIST` of credentials (Authorization, X-Api-Key and the like), authorization, header:NAME and cookie:NAME; or none. Requests without any of them share keys"},
		{"session-cookie", text(&p.SessionCookie, nil), "the `NAME` of a cookie that is part of the scope, like cookie:NAME"},
		{"any-host", yes(&o.AnyAuthority), "let requests to different hosts share keys"},
		{"fingerprint", list(&p.Fingerprint, checkFingerprint), "compare requests loosely, a `LIST` of json, multipart and query-order; or key, to compare only the key"},
		{"fingerprint-fields", list(&o.Fingerprint.Fields, nil), "compare only these fields of a JSON or form body, a `LIST`"},
		{"lease", span(&o.Lease, nil), "how long a key stays taken after the proxy that holds it crashed, at least 1s"},
		{"retention", span(&o.Retention, nil), "how long answers are stored"},
		{"wait", span(&o.Wait, nil), "how long a duplicate waits for the running request before it is refused"},
		{"conflict-status", number(&o.ConflictStatus), "the `STATUS` that refuses a duplicate of a running request, 400 to 499"},
		{"mismatch-status", number(&o.MismatchStatus), "the `STATUS` that refuses another request under a used key, 400 to 499"},
		{"body-timeout", span(&o.BodyTimeout, nil), "how long the client may pause while it sends the body of a guarded request, or take for 16KiB of the answer"},
		{"max-concurrent", number(&o.MaxConcurrent), "how many requests with a key are served at once, a `NUMBER`; a further one gets 503. Each route counts its own (default no bound)"},
		{"max-waiting", number(&o.MaxWaiting), "how many duplicates wait at once, a `NUMBER`; a further one is refused as without wait. Each route counts its own (default no bound)"},
		{"max-body-memory", size(&o.MaxBodyMemory), "how many bytes of bodies are in memory at once, a `SIZE`: of requests with a key, and max-stored for each that runs. A request that needs more gets 503. Each route counts its own (default no bound)"},
		{"max-body", size(&o.MaxBody), "the largest body of a guarded request, a `SIZE` in bytes, KiB or MiB"},
		{"max-stored", size(&o.MaxStored), "the largest body of an answer that is stored, a `SIZE`"},
		{"on-oversize", word(&o.OnOversize), "`WHAT` a larger answer leaves: tombstone (retries get 410) or rerun (retries run again)"},
		{"quota", size(&o.Quota), "how many bytes of stored answers each owner of keys may have, a `SIZE`; then a new key gets 429. Each route and each process counts what it stored (default none)"},
		{"on-crash", word(&o.OnCrash), "`WHAT` follows a run with an unknown outcome: takeover (run again) or at-most-once"},
		{"keep", list(&o.Keep, nil), "store answers with these statuses only, a `LIST` such as 2xx,404 (default 2xx, 3xx and 4xx without 401, 407, 408, 409, 423, 425 and 429)"},
		{"store-5xx", yes(&o.Store5xx), "store answers of 500 and above too"},
		{"keep-set-cookie", yes(&o.KeepSetCookie), "store and replay Set-Cookie"},
		{"not-stored", list(&o.NotStored, nil), "further response fields that are not stored, a `LIST`"},
		{"key-ring", keyRing(p), "encrypt stored answers with the key ring in a `FILE`, or in an environment variable, as env:NAME"},
		{"on-store-failure", word(&o.OnStoreFailure), "`WHAT` happens while the store does not answer: closed (refuse with 503) or open (run unguarded)"},
		{"store-timeout", span(&o.StoreTimeout, nil), "how long the proxy waits for the store"},
		{"handler-timeout", span(&o.HandlerLimit, nil), "how long the origin may take for a guarded request"},
		{"connect-timeout", span(&p.ConnectTimeout, atLeast(time.Millisecond)), "how long connecting to the origin may take"},
		{"forwarded", yes(&p.Forwarded), "send the client's address, host and protocol to the origin in X-Forwarded-For, -Host and -Proto, in place of what the client says of them"},
		{"trusted-proxies", list(&p.TrustedProxies, checkTrusted), "the IP addresses and networks of gateways, a `LIST` such as 10.0.0.0/8: forwarded keeps what these say, and adds their address (default none)"},
		{"cors", list(&p.CORS, checkPage).orElse(corsLearned), "let pages in browsers use keys (default off). Pages of a `LIST`, such as https://shop.example, can also read refusals; origin stands for the pages that the origin allows. Write --cors=LIST"},
		{"errors", word(&p.Errors, slices.Sorted(maps.Keys(problemWriters))...), "the `SHAPE` of refusals: problem (RFC 9457), stripe, acp (Agentic Commerce Protocol), ucp (Universal Commerce Protocol) or jsonapi"},
		{"docs-url", text(&o.DocsURL, nil), "the `URL` of the page that problem types link to"},
	}
}

// defaults returns the configuration before anything is set.
func defaults() Config {
	return Config{Listen: "127.0.0.1:8080", Drain: 30 * time.Second, AccessLog: true, LogFormat: "text", LogLevel: "info", Policy: Policy{
		Guard:          true,
		Scope:          []string{idempotency.ScopeCredentials.String()},
		ConnectTimeout: 5 * time.Second,
		Errors:         "problem",
		Options: idempotency.Options{
			Lease:          idempotency.DefaultLease,
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
			DocsURL:        idempotency.DefaultDocsURL,
			Label:          "dibs proxy",
		},
	}}
}

// bind makes each setting a flag, unless fs has a flag of that name already.
func bind(fs *pflag.FlagSet, all []setting) {
	for _, s := range all {
		if fs.Lookup(s.name) == nil {
			fs.VarPF(s.value.filled(), s.name, "", s.usage).NoOptDefVal = s.value.alone
		}
	}
}
