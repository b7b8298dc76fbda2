package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

// Defaults of Options.
const (
	DefaultLease          = 30 * time.Second
	DefaultRetention      = 24 * time.Hour
	DefaultStoreTimeout   = 4 * time.Second
	DefaultHandlerLimit   = 5 * time.Minute
	DefaultBodyTimeout    = 30 * time.Second
	DefaultMaxBody        = 8 << 20
	DefaultMaxMemory      = 1 << 20
	DefaultMaxStored      = 1 << 20
	DefaultConflictStatus = http.StatusConflict
	DefaultDocsURL        = "https://github.com/dibs-go/dibs/blob/main/docs/http.md"
)

// MaxRetention is the longest time for which an answer is kept; a longer one
// that an application asks for is shortened to it.
const MaxRetention = 10 * 365 * 24 * time.Hour

// Oversize says what becomes of a key whose answer is too long to be kept.
type Oversize string

// What an answer longer than Options.MaxStored leaves behind.
const (
	// Tombstone leaves a note: a retry is answered 410, and nothing runs twice.
	Tombstone Oversize = "tombstone"
	// Rerun leaves nothing: a retry runs again.
	Rerun Oversize = "rerun"
)

// Crash says what becomes of a key whose holder ended without an outcome: it
// crashed, its handler panicked, its origin hung up.
type Crash string

// What happens to a request whose earlier attempt ended without an outcome.
const (
	// TakeOver runs it again: at least once.
	TakeOver Crash = "takeover"
	// AtMostOnce answers 409 "outcome unknown" until an operator settles it.
	AtMostOnce Crash = "at-most-once"
)

// StoreFailure says what happens while the store cannot be asked.
type StoreFailure string

// What a guarded request gets while the store does not answer.
const (
	// FailClosed answers 503 and runs nothing.
	FailClosed StoreFailure = "closed"
	// FailOpen runs the request unguarded, counts it, and marks the answer
	// with Idempotency-Bypassed.
	FailOpen StoreFailure = "open"
)

// Options are the policy of a Middleware. The zero value, and nil, mean the
// defaults. A program with several policies makes several Middlewares; they
// may share a client, and those that may see the same key must agree on how it
// is scoped and fingerprinted.
type Options struct {
	// Methods are the methods that are guarded. Safe methods (GET, HEAD,
	// OPTIONS, TRACE) and CONNECT cannot be. Default: all others.
	Methods []string

	// RequireKey refuses a request of a guarded method that has no key.
	RequireKey bool
	// StrictKey refuses a key that is not a quoted structured-field String.
	StrictKey bool
	// IgnoreXKey takes no notice of X-Idempotency-Key.
	IgnoreXKey bool
	// Key derives the key from the request and its body, and no header is
	// looked at; see KeyHeader, KeyJSON, KeyForm, KeyOf and KeyFirst. "" means that the
	// request has no key, which the Logger is told once; an error refuses it with 400.
	// The body need not be read or closed. Every request of a guarded method then has
	// its body read up to MaxBody. Such a key counts for the request's path alone:
	// a sender gives one event to several endpoints. Default: the Idempotency-Key
	// header.
	Key KeyFunc

	// Scope says to which principal a request's key belongs. All of these parts together
	// tell principals apart. Requests that have none of them share keys, and the Logger
	// is told so once. See ScopeCredentials, ScopeAuthorization, ScopeHeader, ScopeCookie,
	// ScopeFunc and ScopeNone. Default: ScopeCredentials.
	Scope []ScopePart
	// AnyAuthority lets requests for different hosts share keys.
	AnyAuthority bool

	// Fingerprint says by what a request under a reused key is recognised.
	Fingerprint FingerprintOptions

	// MaxBody is how many bytes the body of a guarded request may have; beyond
	// it is refused with 413. Default: DefaultMaxBody.
	MaxBody int64
	// BodyTimeout is how long the sender of a guarded request's body may pause; after
	// that the request is refused with 408. Default: DefaultBodyTimeout.
	BodyTimeout time.Duration
	// MaxMemory is how many bytes of a body are kept in memory; a longer one
	// goes to a temporary file. Default: DefaultMaxMemory.
	MaxMemory int64
	// TempDir is where those files are made. Default: os.TempDir().
	TempDir string

	// Lease is how long a key outlives a holder that crashed. Default:
	// DefaultLease.
	Lease time.Duration
	// Retention is how long an answer is kept, unless the application says
	// otherwise. At least 1 s, at most MaxRetention. Default:
	// DefaultRetention.
	Retention time.Duration
	// Wait is how long a duplicate waits for the one that runs before it is
	// answered with ConflictStatus. Default: not at all.
	Wait time.Duration
	// ConflictStatus answers a duplicate of a request that still runs: a 4xx.
	// Default: DefaultConflictStatus.
	ConflictStatus int

	// MaxStored is how many bytes of an answer's body are kept; at most 1 GiB.
	// Default: DefaultMaxStored.
	MaxStored int64
	// OnOversize says what a longer answer leaves behind. Default: Tombstone.
	OnOversize Oversize
	// OnCrash says what becomes of a key without an outcome. Default: TakeOver.
	OnCrash Crash

	// Store5xx keeps answers with a status of 500 and more, besides what is kept by
	// default. Not together with Keep.
	Store5xx bool
	// Keep lists the statuses that are kept: a status such as "404", or a class such as
	// "2xx". An answer that has Retry-After is kept only if the application says so.
	// Default: 2xx, 3xx and 4xx, except 401, 407, 408, 409, 423, 425 and 429.
	Keep []string
	// KeepSetCookie keeps and replays Set-Cookie.
	KeepSetCookie bool
	// NotStored names more response fields that are neither kept nor replayed.
	NotStored []string

	// OnStoreFailure says what happens while the store does not answer.
	// Default: FailClosed.
	OnStoreFailure StoreFailure
	// StoreTimeout is how long the store is waited for, before the handler runs
	// and again after it. Default: DefaultStoreTimeout.
	StoreTimeout time.Duration
	// HandlerLimit is after how long the context of a handler ends. Default:
	// DefaultHandlerLimit.
	HandlerLimit time.Duration

	// Transactor begins a transaction for each run, in the database that has the
	// keys too: what the handler writes in it and the answer are committed together,
	// and a crash leaves either both or neither. The handler finds it in its
	// request's context, with what the store has for that. A run whose transaction
	// fell victim to a conflict with another one is made again, with the same
	// request, up to dibs.MaxConflicts times in all and within HandlerLimit, unless
	// part of its answer was sent. Requests that are not guarded have none. Not
	// together with AtMostOnce or FailOpen. Default: none.
	Transactor dibs.Transactor
	// Commits says with which statuses the transaction is committed; with others it
	// is rolled back before the answer is stored and sent. Default: below 400.
	Commits func(status int) bool

	// DocsURL is the page that problem types link to, without a fragment.
	// Default: DefaultDocsURL.
	DocsURL string
	// Label tells operators what a key is held for. Default: the client's.
	Label string

	// Logger gets a warning, once each, when requests come that no guard can serve as
	// meant: without any part of the scope, with credentials that differ each time,
	// without the key that Key looks for. Default: slog.Default().
	Logger *slog.Logger

	// Observe is told of every request once, when its outcome is known, on the request's
	// goroutine and with its context: it must not block. Default: nobody is told.
	Observe func(context.Context, Event)

	// Trace returns what names the trace that a context is in, as a traceparent (W3C
	// Trace Context). It is stored with the answer, and Event.First has it when that is
	// replayed. Default: nothing is stored.
	Trace func(context.Context) string
}

// mostStored bounds Options.MaxStored: answers are kept in memory for a while.
const mostStored = 1 << 30

// safeMethods are never guarded.
var safeMethods = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace}

// withDefaults returns a validated copy.
func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	r.Methods = slices.Clone(r.Methods)
	r.Scope = slices.Clone(r.Scope)
	r.Keep = slices.Clone(r.Keep)
	if len(r.Scope) == 0 {
		r.Scope = []ScopePart{ScopeCredentials}
	}
	r.Logger = cmp.Or(r.Logger, slog.Default())
	r.NotStored = slices.Clone(r.NotStored)
	r.Fingerprint.Fields = slices.Clone(r.Fingerprint.Fields)
	r.BodyTimeout = cmp.Or(r.BodyTimeout, DefaultBodyTimeout)
	r.MaxBody = cmp.Or(r.MaxBody, DefaultMaxBody)
	r.MaxMemory = cmp.Or(r.MaxMemory, DefaultMaxMemory)
	r.Lease = cmp.Or(r.Lease, DefaultLease)
	r.Retention = cmp.Or(r.Retention, DefaultRetention)
	r.ConflictStatus = cmp.Or(r.ConflictStatus, DefaultConflictStatus)
	r.MaxStored = cmp.Or(r.MaxStored, DefaultMaxStored)
	r.OnOversize = cmp.Or(r.OnOversize, Tombstone)
	r.OnCrash = cmp.Or(r.OnCrash, TakeOver)
	r.OnStoreFailure = cmp.Or(r.OnStoreFailure, FailClosed)
	r.StoreTimeout = cmp.Or(r.StoreTimeout, DefaultStoreTimeout)
	r.HandlerLimit = cmp.Or(r.HandlerLimit, DefaultHandlerLimit)
	r.DocsURL = cmp.Or(r.DocsURL, DefaultDocsURL)
	if err := r.validate(); err != nil {
		return r, err
	}
	if r.Commits == nil {
		r.Commits = commitsDefault
	}
	return r, nil
}

// validate returns an error that names the field.
func (o *Options) validate() error {
	for _, m := range o.Methods {
		switch {
		case !isToken(m):
			return fmt.Errorf("idempotency: Options.Methods: %q is not a method", m)
		case m == http.MethodConnect || slices.Contains(safeMethods, m):
			return fmt.Errorf("idempotency: Options.Methods: %s cannot be guarded", m)
		case strings.ToUpper(m) != m:
			return fmt.Errorf("idempotency: Options.Methods: %q is not in capitals; methods are case-sensitive", m)
		}
	}
	for _, status := range o.Keep {
		if !isStatusOrClass(status) {
			return fmt.Errorf("idempotency: Options.Keep: %q is neither a status such as 404 nor a class such as 2xx", status)
		}
	}
	for _, part := range o.Scope {
		if part.of == nil && part.name != ScopeNone.name {
			return errors.New("idempotency: Options.Scope has an empty part")
		}
		kind, name, named := strings.Cut(part.name, ":")
		if (kind == "header" || kind == "cookie") && named && !isToken(name) {
			// Nobody would have it, and so everybody would be one.
			return fmt.Errorf("idempotency: Options.Scope: %q is not the name of a %s", name, kind)
		}
	}
	for _, name := range o.NotStored {
		if !isToken(name) {
			return fmt.Errorf("idempotency: Options.NotStored: %q is not a field name", name)
		}
	}
	if u, err := url.Parse(o.DocsURL); err != nil || u.Fragment != "" || !u.IsAbs() {
		return fmt.Errorf("idempotency: Options.DocsURL: %q is not an absolute URL without a fragment", o.DocsURL)
	}
	if err := o.Fingerprint.validate(); err != nil {
		return err
	}
	switch {
	case len(o.Keep) > 0 && o.Store5xx:
		return errors.New("idempotency: Options.Store5xx has no meaning together with Keep")
	case len(o.Scope) > 1 && slices.ContainsFunc(o.Scope, func(p ScopePart) bool { return p.of == nil }):
		return errors.New("idempotency: Options.Scope: ScopeNone has no meaning together with other parts")
	case o.Transactor == nil && o.Commits != nil:
		return errors.New("idempotency: Options.Commits has no meaning without Transactor")
	case o.Transactor != nil && o.OnCrash == AtMostOnce:
		return errors.New("idempotency: Options.OnCrash is AtMostOnce, which has no meaning together with Transactor: a run that crashed has done nothing")
	case o.Transactor != nil && o.OnStoreFailure == FailOpen:
		return errors.New("idempotency: Options.OnStoreFailure is FailOpen, which would run handlers without the transaction of Transactor")
	case o.MaxBody < 0:
		return fmt.Errorf("idempotency: Options.MaxBody is %d; it must not be negative", o.MaxBody)
	case o.BodyTimeout < time.Millisecond:
		return fmt.Errorf("idempotency: Options.BodyTimeout is %v; it must be at least 1ms", o.BodyTimeout)
	case o.MaxMemory < 0:
		return fmt.Errorf("idempotency: Options.MaxMemory is %d; it must not be negative", o.MaxMemory)
	case o.MaxStored < 0 || o.MaxStored > mostStored:
		return fmt.Errorf("idempotency: Options.MaxStored is %d; it must be 0 to %d", o.MaxStored, mostStored)
	case o.Lease < time.Second:
		return fmt.Errorf("idempotency: Options.Lease is %v; it must be at least 1s", o.Lease)
	case o.Retention < time.Second || o.Retention > MaxRetention:
		return fmt.Errorf("idempotency: Options.Retention is %v; it must be 1s to %v", o.Retention, MaxRetention)
	case o.Wait < 0:
		return fmt.Errorf("idempotency: Options.Wait is %v; it must not be negative", o.Wait)
	case o.ConflictStatus < 400 || o.ConflictStatus > 499:
		return fmt.Errorf("idempotency: Options.ConflictStatus is %d; it must be 400 to 499", o.ConflictStatus)
	case o.OnOversize != Tombstone && o.OnOversize != Rerun:
		return fmt.Errorf("idempotency: Options.OnOversize is %q; it must be %q or %q", o.OnOversize, Tombstone, Rerun)
	case o.OnCrash != TakeOver && o.OnCrash != AtMostOnce:
		return fmt.Errorf("idempotency: Options.OnCrash is %q; it must be %q or %q", o.OnCrash, TakeOver, AtMostOnce)
	case o.OnStoreFailure != FailClosed && o.OnStoreFailure != FailOpen:
		return fmt.Errorf("idempotency: Options.OnStoreFailure is %q; it must be %q or %q", o.OnStoreFailure, FailClosed, FailOpen)
	case o.StoreTimeout < time.Millisecond:
		return fmt.Errorf("idempotency: Options.StoreTimeout is %v; it must be at least 1ms", o.StoreTimeout)
	case o.HandlerLimit < time.Millisecond:
		return fmt.Errorf("idempotency: Options.HandlerLimit is %v; it must be at least 1ms", o.HandlerLimit)
	case len(o.Label) > dibs.MaxOwner:
		return fmt.Errorf("idempotency: Options.Label has %d bytes; it may have at most %d", len(o.Label), dibs.MaxOwner)
	}
	return nil
}

// commitsDefault takes a refusal for a failure: what was written before it was
// found out is not meant to stay.
func commitsDefault(status int) bool { return status < 400 }

// keepsStatus reports whether answers with the status are kept. By default these are the
// ones that another attempt would not change: not the server's failures, and not a
// refusal that time, another request's end or other credentials lift.
func (o *Options) keepsStatus(status int) bool {
	if len(o.Keep) > 0 {
		text := strconv.Itoa(status)
		return slices.Contains(o.Keep, text) || slices.Contains(o.Keep, text[:1]+"xx")
	}
	switch status {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusConflict, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500 || o.Store5xx
}

// isStatusOrClass reports whether s is an element of Options.Keep.
func isStatusOrClass(s string) bool {
	return len(s) == 3 && '2' <= s[0] && s[0] <= '9' && (s[1:] == "xx" || strings.Trim(s, "0123456789") == "")
}

// isToken reports whether s is a token of RFC 9110: a method's or field's name.
func isToken(s string) bool {
	for i := range len(s) {
		if !tokenChar[s[i]] {
			return false
		}
	}
	return s != ""
}

// tokenChar tells the characters of a token.
var tokenChar = func() (t [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		t[c] = true
	}
	return t
}()
