package proxy

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/idempotency"
)

// Policy is how the requests of a route are treated. Its fields are flags of
// dibs proxy and, under the same names, fields of the configuration file.
type Policy struct {
	Upstream       string   `yaml:"upstream"`
	Guard          bool     `yaml:"guard"`
	Methods        List     `yaml:"methods"`
	RequireKey     bool     `yaml:"require-key"`
	StrictKey      bool     `yaml:"strict-key"`
	IgnoreXKey     bool     `yaml:"ignore-x-key"`
	For            string   `yaml:"for"`
	Key            List     `yaml:"key"`
	Scope          List     `yaml:"scope"`
	SessionCookie  string   `yaml:"session-cookie"`
	AnyHost        bool     `yaml:"any-host"`
	Fingerprint    List     `yaml:"fingerprint"`
	Fields         List     `yaml:"fingerprint-fields"`
	Lease          Duration `yaml:"lease"`
	Retention      Duration `yaml:"retention"`
	Wait           Duration `yaml:"wait"`
	ConflictStatus int      `yaml:"conflict-status"`
	BodyTimeout    Duration `yaml:"body-timeout"`
	MaxBody        Size     `yaml:"max-body"`
	MaxStored      Size     `yaml:"max-stored"`
	OnOversize     string   `yaml:"on-oversize"`
	OnCrash        string   `yaml:"on-crash"`
	Keep           List     `yaml:"keep"`
	Store5xx       bool     `yaml:"store-5xx"`
	KeepSetCookie  bool     `yaml:"keep-set-cookie"`
	NotStored      List     `yaml:"not-stored"`
	OnStoreFailure string   `yaml:"on-store-failure"`
	StoreTimeout   Duration `yaml:"store-timeout"`
	HandlerTimeout Duration `yaml:"handler-timeout"`
	ConnectTimeout Duration `yaml:"connect-timeout"`
	Forwarded      bool     `yaml:"forwarded"`
	CORS           List     `yaml:"cors"`
	DocsURL        string   `yaml:"docs-url"`
}

// defaultPolicy is the policy before anything is configured.
func defaultPolicy() Policy {
	return Policy{
		Guard:          true,
		Scope:          List{idempotency.ScopeCredentials.String()},
		Lease:          Duration(idempotency.DefaultLease),
		Retention:      Duration(idempotency.DefaultRetention),
		ConflictStatus: idempotency.DefaultConflictStatus,
		BodyTimeout:    Duration(idempotency.DefaultBodyTimeout),
		MaxBody:        idempotency.DefaultMaxBody,
		MaxStored:      idempotency.DefaultMaxStored,
		OnOversize:     string(idempotency.Tombstone),
		OnCrash:        string(idempotency.TakeOver),
		OnStoreFailure: string(idempotency.FailClosed),
		StoreTimeout:   Duration(idempotency.DefaultStoreTimeout),
		HandlerTimeout: Duration(idempotency.DefaultHandlerLimit),
		ConnectTimeout: Duration(5 * time.Second),
		DocsURL:        idempotency.DefaultDocsURL,
	}
}

// bind makes the policy's fields flags.
func (p *Policy) bind(fs *pflag.FlagSet) {
	fs.StringVar(&p.Upstream, "upstream", p.Upstream, "the `URL` of the origin: http://, https:// or h2c://")
	fs.BoolVar(&p.Guard, "guard", p.Guard, "guard requests that carry a key")
	fs.Var(&p.Methods, "methods", "guard only these methods, a `LIST` (default all but GET, HEAD, OPTIONS and TRACE)")
	fs.BoolVar(&p.RequireKey, "require-key", p.RequireKey, "refuse requests of a guarded method that have no key")
	fs.BoolVar(&p.StrictKey, "strict-key", p.StrictKey, "refuse keys that are not quoted strings")
	fs.BoolVar(&p.IgnoreXKey, "ignore-x-key", p.IgnoreXKey, "take no notice of X-Idempotency-Key")
	fs.StringVar(&p.For, "for", p.For, "a `PRESET` of what follows: webhook, for the endpoints of somebody else's events")
	fs.Var(&p.Key, "key", "take the key from elsewhere, a `LIST` of parts: header:NAME, json:FIELD or form:FIELD; alternatives with |")
	fs.Var(&p.Scope, "scope", "whose a key is, a `LIST` of credentials (Authorization, X-Api-Key and the like), authorization, header:NAME, cookie:NAME; or none. Requests that have none of them share keys")
	fs.StringVar(&p.SessionCookie, "session-cookie", p.SessionCookie, "the cookie `NAME` that belongs to the scope too, as cookie:NAME does")
	fs.BoolVar(&p.AnyHost, "any-host", p.AnyHost, "let requests for different hosts share keys")
	fs.Var(&p.Fingerprint, "fingerprint", "compare requests loosely, a `LIST` of json, multipart, query-order; or key, for nothing but the key")
	fs.Var(&p.Fields, "fingerprint-fields", "compare only these fields of a JSON or form body, a `LIST`")
	fs.Var(&p.Lease, "lease", "how long a key outlives a proxy that crashed, at least 1s")
	fs.Var(&p.Retention, "retention", "how long answers are kept")
	fs.Var(&p.Wait, "wait", "how long a duplicate waits for the running one before it is refused")
	fs.IntVar(&p.ConflictStatus, "conflict-status", p.ConflictStatus, "the `STATUS` that refuses a duplicate of a running request, 400 to 499")
	fs.Var(&p.BodyTimeout, "body-timeout", "how long the client may pause within the body of a guarded request")
	fs.Var(&p.MaxBody, "max-body", "the longest body of a guarded request, a `SIZE` in bytes, KiB or MiB")
	fs.Var(&p.MaxStored, "max-stored", "the longest body of an answer that is kept, a `SIZE`")
	fs.StringVar(&p.OnOversize, "on-oversize", p.OnOversize, "`WHAT` a longer answer leaves behind: tombstone (retries get 410) or rerun")
	fs.StringVar(&p.OnCrash, "on-crash", p.OnCrash, "`WHAT` follows a run without an outcome: takeover (run again) or at-most-once")
	fs.Var(&p.Keep, "keep", "keep answers with these statuses only, a `LIST` such as 2xx,404 (default 2xx, 3xx and 4xx without 401, 407, 408, 409, 423, 425 and 429)")
	fs.BoolVar(&p.Store5xx, "store-5xx", p.Store5xx, "keep answers of 500 and more, too")
	fs.BoolVar(&p.KeepSetCookie, "keep-set-cookie", p.KeepSetCookie, "keep and replay Set-Cookie")
	fs.Var(&p.NotStored, "not-stored", "more response fields that are not kept, a `LIST`")
	fs.StringVar(&p.OnStoreFailure, "on-store-failure", p.OnStoreFailure, "`WHAT` happens while the store does not answer: closed (503) or open (run unguarded)")
	fs.Var(&p.StoreTimeout, "store-timeout", "how long the store is waited for")
	fs.Var(&p.HandlerTimeout, "handler-timeout", "how long the origin may take for a guarded request")
	fs.Var(&p.ConnectTimeout, "connect-timeout", "how long connecting to the origin may take")
	fs.BoolVar(&p.Forwarded, "forwarded", p.Forwarded, "tell the origin the client's address in X-Forwarded-For, -Host and -Proto")
	fs.Var(&p.CORS, "cors", "let pages in browsers use keys (default off), and those of a `LIST` read refusals: pages such as https://shop.example, or origin for those that the origin allows; write --cors=LIST")
	fs.Lookup("cors").NoOptDefVal = corsLearned
	fs.StringVar(&p.DocsURL, "docs-url", p.DocsURL, "the `URL` of the page that problem types link to")
}

// options turns the policy into the middleware's. The error names the field.
func (p *Policy) options() (*idempotency.Options, error) {
	o := &idempotency.Options{
		Methods:        slices.Clone(p.Methods),
		RequireKey:     p.RequireKey,
		StrictKey:      p.StrictKey,
		IgnoreXKey:     p.IgnoreXKey,
		AnyAuthority:   p.AnyHost,
		BodyTimeout:    time.Duration(p.BodyTimeout),
		MaxBody:        int64(p.MaxBody),
		Lease:          time.Duration(p.Lease),
		Retention:      time.Duration(p.Retention),
		Wait:           time.Duration(p.Wait),
		ConflictStatus: p.ConflictStatus,
		MaxStored:      int64(p.MaxStored),
		OnOversize:     idempotency.Oversize(p.OnOversize),
		OnCrash:        idempotency.Crash(p.OnCrash),
		Keep:           slices.Clone(p.Keep),
		Store5xx:       p.Store5xx,
		KeepSetCookie:  p.KeepSetCookie,
		NotStored:      slices.Clone(p.NotStored),
		OnStoreFailure: idempotency.StoreFailure(p.OnStoreFailure),
		StoreTimeout:   time.Duration(p.StoreTimeout),
		HandlerLimit:   time.Duration(p.HandlerTimeout),
		DocsURL:        p.DocsURL,
		Label:          "dibs proxy",
	}
	o.Fingerprint.Fields = slices.Clone(p.Fields)
	for _, what := range p.Fingerprint {
		switch what {
		case "json":
			o.Fingerprint.CanonicalJSON = true
		case "multipart":
			o.Fingerprint.Multipart = true
		case "query-order":
			o.Fingerprint.SortQuery = true
		case "key":
			o.Fingerprint.KeyAlone = true
		default:
			return nil, fmt.Errorf("fingerprint: %q is none of json, multipart, query-order, key", what)
		}
	}
	var err error
	if o.Scope, err = p.scope(); err != nil {
		return nil, err
	}
	if o.Key, err = p.key(); err != nil {
		return nil, err
	}
	return o, p.check()
}

// statuses are what Keep may list.
var statuses = regexp.MustCompile("^[2-9](xx|[0-9][0-9])$")

// check refuses what the middleware would not, or would name differently.
func (p *Policy) check() error {
	for _, status := range p.Keep {
		if !statuses.MatchString(status) {
			return fmt.Errorf("keep: %q is neither a status such as 404 nor a class such as 2xx", status)
		}
	}
	for _, page := range p.CORS {
		if u, err := url.Parse(page); page != corsLearned && (err != nil || u.Scheme == "" || u.Host == "" || u.Path != "") {
			return fmt.Errorf("cors: %q is neither origin nor a page's origin, such as https://shop.example", page)
		}
	}
	switch {
	case len(p.Keep) > 0 && p.Store5xx:
		return errors.New("store-5xx: it has no meaning together with keep")
	case p.For != "" && p.For != "webhook":
		return fmt.Errorf("for: %q is no preset; there is webhook", p.For)
	case slices.Contains(p.Fingerprint, "key") && (len(p.Fingerprint) > 1 || len(p.Fields) > 0):
		return errors.New("fingerprint: key has no meaning together with others")
	case p.MaxBody <= 0:
		return errors.New("max-body: it must be at least 1 byte")
	case p.MaxStored <= 0:
		return errors.New("max-stored: it must be at least 1 byte")
	case p.Lease < Duration(time.Second):
		return fmt.Errorf("lease: %v is too short; it must be at least 1s", &p.Lease)
	case p.Retention < Duration(time.Second) || p.Retention > Duration(idempotency.MaxRetention):
		return fmt.Errorf("retention: %v is out of range; it must be 1s to %v", &p.Retention, idempotency.MaxRetention)
	case p.Wait < 0:
		return fmt.Errorf("wait: %v is negative", &p.Wait)
	case p.ConflictStatus < 400 || p.ConflictStatus > 499:
		return fmt.Errorf("conflict-status: %d is not 400 to 499", p.ConflictStatus)
	case p.OnOversize != string(idempotency.Tombstone) && p.OnOversize != string(idempotency.Rerun):
		return fmt.Errorf("on-oversize: %q is neither tombstone nor rerun", p.OnOversize)
	case p.OnCrash != string(idempotency.TakeOver) && p.OnCrash != string(idempotency.AtMostOnce):
		return fmt.Errorf("on-crash: %q is neither takeover nor at-most-once", p.OnCrash)
	case p.OnStoreFailure != string(idempotency.FailClosed) && p.OnStoreFailure != string(idempotency.FailOpen):
		return fmt.Errorf("on-store-failure: %q is neither closed nor open", p.OnStoreFailure)
	case p.BodyTimeout < Duration(time.Millisecond):
		return fmt.Errorf("body-timeout: %v is too short; it must be at least 1ms", &p.BodyTimeout)
	case p.StoreTimeout < Duration(time.Millisecond):
		return fmt.Errorf("store-timeout: %v is too short; it must be at least 1ms", &p.StoreTimeout)
	case p.HandlerTimeout < Duration(time.Millisecond):
		return fmt.Errorf("handler-timeout: %v is too short; it must be at least 1ms", &p.HandlerTimeout)
	case p.ConnectTimeout < Duration(time.Millisecond):
		return fmt.Errorf("connect-timeout: %v is too short; it must be at least 1ms", &p.ConnectTimeout)
	}
	return nil
}

// scope returns what tells principals apart.
func (p *Policy) scope() ([]idempotency.ScopePart, error) {
	var parts []idempotency.ScopePart
	for _, text := range p.Scope {
		kind, name, named := strings.Cut(text, ":")
		if named && name == "" {
			return nil, fmt.Errorf("scope: the name is missing after %q", kind+":")
		}
		if (kind == "header" || kind == "cookie") && named && !isName(name) {
			// Nobody would have it, and so everybody would be one.
			return nil, fmt.Errorf("scope: %q is not the name of a %s", name, kind)
		}
		switch {
		case text == "credentials":
			parts = append(parts, idempotency.ScopeCredentials)
		case text == "authorization":
			parts = append(parts, idempotency.ScopeAuthorization)
		case text == "none":
			parts = append(parts, idempotency.ScopeNone)
		case kind == "header" && named:
			parts = append(parts, idempotency.ScopeHeader(name))
		case kind == "cookie" && named:
			parts = append(parts, idempotency.ScopeCookie(name))
		default:
			return nil, fmt.Errorf("scope: %q is none of credentials, authorization, header:NAME, cookie:NAME, none", text)
		}
	}
	if p.SessionCookie != "" {
		if !isName(p.SessionCookie) {
			return nil, fmt.Errorf("session-cookie: %q is not the name of a cookie", p.SessionCookie)
		}
		parts = append(parts, idempotency.ScopeCookie(p.SessionCookie))
	}
	if len(parts) > 1 && slices.ContainsFunc(parts, func(part idempotency.ScopePart) bool { return part.String() == "none" }) {
		return nil, errors.New("scope: none has no meaning together with other parts")
	}
	return parts, nil
}

// key returns the function that derives the key; nil for the header.
func (p *Policy) key() (idempotency.KeyFunc, error) {
	if len(p.Key) == 0 {
		return nil, nil
	}
	var parts []idempotency.KeyFunc
	for _, text := range p.Key {
		var ways []idempotency.KeyFunc
		for way := range strings.SplitSeq(text, "|") {
			f, err := keyFrom(way)
			if err != nil {
				return nil, err
			}
			ways = append(ways, f)
		}
		parts = append(parts, idempotency.KeyFirst(ways...))
	}
	return idempotency.KeyOf(parts...), nil
}

// keyFrom returns the function for one place of a key.
func keyFrom(text string) (idempotency.KeyFunc, error) {
	kind, name, _ := strings.Cut(text, ":")
	switch {
	case name == "":
	case kind == "header" && !isName(name):
		return nil, fmt.Errorf("key: %q is not the name of a header", name)
	case kind == "header":
		return idempotency.KeyHeader(name), nil
	case kind == "json":
		return idempotency.KeyJSON(name), nil
	case kind == "form":
		return idempotency.KeyForm(name), nil
	}
	return nil, fmt.Errorf("key: %q is none of header:NAME, json:FIELD, form:FIELD", text)
}

// preset sets what For says. What is said besides it goes before it.
func (p *Policy) preset() {
	if p.For != "webhook" {
		return
	}
	p.Key = List{"header:Webhook-Id|header:Svix-Id|header:X-GitHub-Delivery|header:X-Shopify-Webhook-Id|header:X-Event-Id|json:id|json:event_id|form:id"}
	p.Scope = List{"none"}
	p.Fingerprint = List{"key"}
	p.Keep = List{"2xx"}
	p.Wait = Duration(5 * time.Second)
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
