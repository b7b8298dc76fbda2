package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/idempotency"
)

// Policy is how the requests of a route are treated. Its fields are flags of
// dibs proxy and, under the same names, fields of the configuration file.
type Policy struct {
	Upstream       string        `yaml:"upstream"`
	Guard          bool          `yaml:"guard"`
	Methods        List          `yaml:"methods"`
	RequireKey     bool          `yaml:"require-key"`
	StrictKey      bool          `yaml:"strict-key"`
	IgnoreXKey     bool          `yaml:"ignore-x-key"`
	Key            string        `yaml:"key"`
	Scope          string        `yaml:"scope"`
	SessionCookie  string        `yaml:"session-cookie"`
	AnyHost        bool          `yaml:"any-host"`
	Fingerprint    List          `yaml:"fingerprint"`
	Fields         List          `yaml:"fingerprint-fields"`
	Lease          time.Duration `yaml:"lease"`
	Retention      time.Duration `yaml:"retention"`
	Wait           time.Duration `yaml:"wait"`
	ConflictStatus int           `yaml:"conflict-status"`
	MaxBody        Size          `yaml:"max-body"`
	MaxStored      Size          `yaml:"max-stored"`
	OnOversize     string        `yaml:"on-oversize"`
	OnCrash        string        `yaml:"on-crash"`
	Store5xx       bool          `yaml:"store-5xx"`
	KeepSetCookie  bool          `yaml:"keep-set-cookie"`
	NotStored      List          `yaml:"not-stored"`
	OnStoreFailure string        `yaml:"on-store-failure"`
	StoreTimeout   time.Duration `yaml:"store-timeout"`
	HandlerTimeout time.Duration `yaml:"handler-timeout"`
	ConnectTimeout time.Duration `yaml:"connect-timeout"`
	Forwarded      bool          `yaml:"forwarded"`
	DocsURL        string        `yaml:"docs-url"`
}

// defaultPolicy is the policy before anything is configured.
func defaultPolicy() Policy {
	return Policy{
		Guard:          true,
		Scope:          "authorization",
		Lease:          idempotency.DefaultLease,
		Retention:      idempotency.DefaultRetention,
		ConflictStatus: idempotency.DefaultConflictStatus,
		MaxBody:        idempotency.DefaultMaxBody,
		MaxStored:      idempotency.DefaultMaxStored,
		OnOversize:     string(idempotency.Tombstone),
		OnCrash:        string(idempotency.TakeOver),
		OnStoreFailure: string(idempotency.FailClosed),
		StoreTimeout:   idempotency.DefaultStoreTimeout,
		HandlerTimeout: idempotency.DefaultHandlerLimit,
		ConnectTimeout: 5 * time.Second,
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
	fs.StringVar(&p.Key, "key", p.Key, "derive the key instead: header:NAME or json:`FIELD`")
	fs.StringVar(&p.Scope, "scope", p.Scope, "whose keys they are: authorization, header:NAME, cookie:NAME or none; `WHAT`")
	fs.StringVar(&p.SessionCookie, "session-cookie", p.SessionCookie, "the cookie `NAME` that tells clients apart where there is no Authorization")
	fs.BoolVar(&p.AnyHost, "any-host", p.AnyHost, "let requests for different hosts share keys")
	fs.Var(&p.Fingerprint, "fingerprint", "what to overlook when a request is compared with the first, a `LIST` of json, multipart, query-order")
	fs.Var(&p.Fields, "fingerprint-fields", "compare only these fields of a JSON or form body, a `LIST`")
	fs.DurationVar(&p.Lease, "lease", p.Lease, "how long a key outlives a proxy that crashed, at least 1s")
	fs.DurationVar(&p.Retention, "retention", p.Retention, "how long answers are kept")
	fs.DurationVar(&p.Wait, "wait", p.Wait, "how long a duplicate waits for the running one before it is refused")
	fs.IntVar(&p.ConflictStatus, "conflict-status", p.ConflictStatus, "the `STATUS` that refuses a duplicate of a running request, 400 to 499")
	fs.Var(&p.MaxBody, "max-body", "the longest body of a guarded request, a `SIZE` in bytes, KiB or MiB")
	fs.Var(&p.MaxStored, "max-stored", "the longest body of an answer that is kept, a `SIZE`")
	fs.StringVar(&p.OnOversize, "on-oversize", p.OnOversize, "what a longer answer leaves: tombstone or rerun; `WHAT`")
	fs.StringVar(&p.OnCrash, "on-crash", p.OnCrash, "what follows a run without an outcome: takeover or at-most-once; `WHAT`")
	fs.BoolVar(&p.Store5xx, "store-5xx", p.Store5xx, "keep answers of 500 and more")
	fs.BoolVar(&p.KeepSetCookie, "keep-set-cookie", p.KeepSetCookie, "keep and replay Set-Cookie")
	fs.Var(&p.NotStored, "not-stored", "more response fields that are not kept, a `LIST`")
	fs.StringVar(&p.OnStoreFailure, "on-store-failure", p.OnStoreFailure, "what happens while the store does not answer: closed or open; `WHAT`")
	fs.DurationVar(&p.StoreTimeout, "store-timeout", p.StoreTimeout, "how long the store is waited for")
	fs.DurationVar(&p.HandlerTimeout, "handler-timeout", p.HandlerTimeout, "how long the origin may take for a guarded request")
	fs.DurationVar(&p.ConnectTimeout, "connect-timeout", p.ConnectTimeout, "how long connecting to the origin may take")
	fs.BoolVar(&p.Forwarded, "forwarded", p.Forwarded, "tell the origin the client's address in X-Forwarded-For, -Host and -Proto")
	fs.StringVar(&p.DocsURL, "docs-url", p.DocsURL, "the `URL` of the page that problem types link to")
}

// options turns the policy into the middleware's. The error names the field.
func (p *Policy) options() (*idempotency.Options, error) {
	o := &idempotency.Options{
		Methods:        slices.Clone(p.Methods),
		RequireKey:     p.RequireKey,
		StrictKey:      p.StrictKey,
		IgnoreXKey:     p.IgnoreXKey,
		SessionCookie:  p.SessionCookie,
		AnyAuthority:   p.AnyHost,
		MaxBody:        int64(p.MaxBody),
		Lease:          p.Lease,
		Retention:      p.Retention,
		Wait:           p.Wait,
		ConflictStatus: p.ConflictStatus,
		MaxStored:      int64(p.MaxStored),
		OnOversize:     idempotency.Oversize(p.OnOversize),
		OnCrash:        idempotency.Crash(p.OnCrash),
		Store5xx:       p.Store5xx,
		KeepSetCookie:  p.KeepSetCookie,
		NotStored:      slices.Clone(p.NotStored),
		OnStoreFailure: idempotency.StoreFailure(p.OnStoreFailure),
		StoreTimeout:   p.StoreTimeout,
		HandlerLimit:   p.HandlerTimeout,
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
		default:
			return nil, fmt.Errorf("fingerprint: %q is none of json, multipart, query-order", what)
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

// check refuses what the middleware would not, or would name differently.
func (p *Policy) check() error {
	switch {
	case p.MaxBody <= 0:
		return errors.New("max-body: it must be at least 1 byte")
	case p.MaxStored <= 0:
		return errors.New("max-stored: it must be at least 1 byte")
	case p.Lease < time.Second:
		return fmt.Errorf("lease: %v is too short; it must be at least 1s", p.Lease)
	case p.Retention < time.Second || p.Retention > idempotency.MaxRetention:
		return fmt.Errorf("retention: %v is out of range; it must be 1s to %v", p.Retention, idempotency.MaxRetention)
	case p.Wait < 0:
		return fmt.Errorf("wait: %v is negative", p.Wait)
	case p.ConflictStatus < 400 || p.ConflictStatus > 499:
		return fmt.Errorf("conflict-status: %d is not 400 to 499", p.ConflictStatus)
	case p.OnOversize != string(idempotency.Tombstone) && p.OnOversize != string(idempotency.Rerun):
		return fmt.Errorf("on-oversize: %q is neither tombstone nor rerun", p.OnOversize)
	case p.OnCrash != string(idempotency.TakeOver) && p.OnCrash != string(idempotency.AtMostOnce):
		return fmt.Errorf("on-crash: %q is neither takeover nor at-most-once", p.OnCrash)
	case p.OnStoreFailure != string(idempotency.FailClosed) && p.OnStoreFailure != string(idempotency.FailOpen):
		return fmt.Errorf("on-store-failure: %q is neither closed nor open", p.OnStoreFailure)
	case p.StoreTimeout < time.Millisecond:
		return fmt.Errorf("store-timeout: %v is too short; it must be at least 1ms", p.StoreTimeout)
	case p.HandlerTimeout < time.Millisecond:
		return fmt.Errorf("handler-timeout: %v is too short; it must be at least 1ms", p.HandlerTimeout)
	case p.ConnectTimeout < time.Millisecond:
		return fmt.Errorf("connect-timeout: %v is too short; it must be at least 1ms", p.ConnectTimeout)
	}
	return nil
}

// scope returns the function that tells principals apart.
func (p *Policy) scope() (func(*http.Request) string, error) {
	kind, name, named := strings.Cut(p.Scope, ":")
	if named && name == "" {
		return nil, fmt.Errorf("scope: the name is missing after %s:", kind)
	}
	switch {
	case p.Scope == "authorization":
		return nil, nil // the middleware's default, session cookie included
	case p.SessionCookie != "":
		return nil, errors.New("session-cookie: it has no meaning with this scope")
	case p.Scope == "none":
		return idempotency.ScopeNone, nil
	case kind == "header" && named:
		return idempotency.ScopeHeader(name), nil
	case kind == "cookie" && named:
		return idempotency.ScopeCookie(name), nil
	}
	return nil, fmt.Errorf("scope: %q is none of authorization, header:NAME, cookie:NAME, none", p.Scope)
}

// key returns the function that derives the key; nil for the header.
func (p *Policy) key() (func(*http.Request, io.ReadSeeker) (string, error), error) {
	if p.Key == "" {
		return nil, nil
	}
	kind, name, _ := strings.Cut(p.Key, ":")
	switch {
	case name == "":
	case kind == "header":
		return idempotency.KeyHeader(name), nil
	case kind == "json":
		return idempotency.KeyJSON(name), nil
	}
	return nil, fmt.Errorf("key: %q is neither header:NAME nor json:FIELD", p.Key)
}

// List is a comma-separated list. In a configuration file it may be a sequence
// as well.
type List []string

// String returns the list as it is written.
func (l *List) String() string { return strings.Join(*l, ",") }

// Type returns the word that help texts show.
func (l *List) Type() string { return "list" }

// Set replaces the list. It refuses empty elements.
func (l *List) Set(s string) error {
	*l = nil
	if s == "" {
		return nil
	}
	for element := range strings.SplitSeq(s, ",") {
		if element = strings.TrimSpace(element); element == "" {
			return fmt.Errorf("%q has an empty element", s)
		}
		*l = append(*l, element)
	}
	return nil
}

// UnmarshalYAML reads a sequence or a comma-separated string.
func (l *List) UnmarshalYAML(decode func(any) error) error {
	var sequence []string
	if err := decode(&sequence); err == nil {
		*l = sequence
		return nil
	}
	var s string
	if err := decode(&s); err != nil {
		return err
	}
	return l.Set(s)
}

// Size is a number of bytes. It is written as such or with a unit: KiB, MiB.
type Size int64

// String returns the size with the largest unit that divides it.
func (s *Size) String() string {
	switch n := int64(*s); {
	case n != 0 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + "MiB"
	case n != 0 && n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + "KiB"
	default:
		return strconv.FormatInt(n, 10)
	}
}

// Type returns the word that help texts show.
func (s *Size) Type() string { return "size" }

// Set reads a size. It refuses other units and negative numbers.
func (s *Size) Set(text string) error {
	digits, shift := text, 0
	if rest, ok := strings.CutSuffix(text, "KiB"); ok {
		digits, shift = rest, 10
	} else if rest, ok := strings.CutSuffix(text, "MiB"); ok {
		digits, shift = rest, 20
	}
	n, err := strconv.ParseUint(strings.TrimRight(digits, " "), 10, 63-shift)
	if err != nil {
		return fmt.Errorf("%q is not a size: write bytes, or a number with KiB or MiB", text)
	}
	*s = Size(n << shift)
	return nil
}

// UnmarshalYAML reads a number of bytes or a size with its unit.
func (s *Size) UnmarshalYAML(decode func(any) error) error {
	var text string
	if err := decode(&text); err != nil {
		return err
	}
	return s.Set(text)
}
