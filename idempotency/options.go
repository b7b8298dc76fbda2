package idempotency

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/memory"
)

// Defaults of Options.
const (
	DefaultRetention      = 24 * time.Hour
	DefaultStoreTimeout   = 4 * time.Second
	DefaultHandlerLimit   = 5 * time.Minute
	DefaultBodyTimeout    = 30 * time.Second
	DefaultMaxBody        = 8 << 20
	DefaultMaxStored      = 1 << 20
	DefaultConflictStatus = http.StatusConflict
	DefaultMismatchStatus = http.StatusUnprocessableEntity
)

// DocsURL is the page that problem types link to, without the fragment.
const DocsURL = "https://github.com/dibs-go/dibs/blob/main/docs/reference/http.md"

// minLease bounds Options.Lease, because a duplicate is told to ask again after whole seconds.
const minLease = time.Second

// MaxRetention is the longest time for which an answer is kept. A longer Idempotency-Control:
// max-age is shortened to it.
const MaxRetention = 10 * 365 * 24 * time.Hour

// Oversize says what an answer longer than Options.MaxStored leaves behind.
type Oversize string

// The values of Options.OnOversize.
const (
	// Tombstone leaves a note: a retry is answered 410, and nothing runs twice.
	Tombstone Oversize = "tombstone"
	// Rerun leaves nothing: a retry runs again.
	Rerun Oversize = "rerun"
)

// Crash says what happens to a request whose earlier attempt ended without an outcome: the process
// crashed, the handler panicked, the origin hung up.
type Crash string

// The values of Options.OnCrash.
const (
	// TakeOver runs the request again: at least once.
	TakeOver Crash = "takeover"
	// AtMostOnce answers 409 "outcome unknown" until an operator resolves the key.
	AtMostOnce Crash = "at-most-once"
)

// StoreFailure says what happens while the store does not answer.
type StoreFailure string

// The values of Options.OnStoreFailure.
const (
	// FailClosed answers 503 and runs nothing.
	FailClosed StoreFailure = "closed"
	// FailOpen runs the request without a guard, counts it, and marks the answer with
	// Idempotency-Bypassed.
	FailOpen StoreFailure = "open"
)

// KeyPer says what names a run beside the key.
type KeyPer string

// The values of Options.KeyPer.
const (
	// KeyPerPrincipal: the key alone names a run of its principal. Another request under the key is
	// refused.
	KeyPerPrincipal KeyPer = "principal"
	// KeyPerPath: the key counts for the request's path alone. The same key at another path names
	// another run.
	KeyPerPath KeyPer = "path"
	// KeyPerRequest: the key and the request's fingerprint name a run. Requests that differ share a
	// key, and each runs once. No request is refused because the key was used for another one, so a
	// retry that is not the same request runs.
	KeyPerRequest KeyPer = "request"
)

// Options are the policy of a Middleware. The zero value, and nil, mean the defaults. A program
// with several policies makes several Middlewares, which may share a client. Middlewares that may
// see the same key must have the same Scope, KeyPer and Fingerprint.
type Options struct {
	// Methods are the methods that are guarded. Safe methods (GET, HEAD, OPTIONS, TRACE) and
	// CONNECT cannot be. Default: all others.
	Methods []string

	// RequireKey refuses a request of a guarded method that has no key.
	RequireKey bool
	// StrictKey refuses a key that is not a quoted structured-field String.
	StrictKey bool
	// Key derives the key from the request and its body, instead of from the Idempotency-Key
	// header; see KeyHeader, KeyJSON, KeyForm, KeyOf and KeyFirst. "" means that the request has no
	// key; the Logger gets one warning. An error refuses the request with 400. Every request of a
	// guarded method then has its body read up to MaxBody. A derived key counts for the request's
	// path alone, because a sender may send one event to several endpoints. Default: the
	// Idempotency-Key header.
	Key KeyFunc

	// MCP guards calls of tools (tools/call) of the Model Context Protocol, and passes every other
	// message. Key is asked about calls only. The body says which message it is. Whatever the client
	// sends must be JSON-RPC; a batch with a call, and a call with a key and without an id, are
	// refused. Two calls are compared by params without _meta, in place of Fingerprint. A key counts for
	// one tool and one target, query included. A replay has the id of the new request, and nothing else
	// of the first answer's stream than the response. What would end a guarded call that runs is held
	// back: a cancellation that names it (notifications/cancelled), and the DELETE of its session.
	// MCPOptions sets what belongs to it. Default: nil, and every message is a request as others are.
	MCP *MCP

	// Scope says which principal a key belongs to. All of these parts together tell principals
	// apart. Requests that have none of them share keys; the Logger gets one warning. See
	// ScopeCredentials, ScopeAuthorization, ScopeHeader, ScopeCookie, ScopeFunc and ScopeNone.
	// Default: ScopeCredentials.
	Scope []ScopePart
	// KeyPer says what names a run beside the key. With MCP, the tool and the target always do. Default:
	// KeyPerPrincipal; KeyPerPath for a derived key.
	KeyPer KeyPer

	// Fingerprint says how a request under a reused key is recognised.
	Fingerprint FingerprintOptions

	// MaxBody is how many bytes the body of a guarded request may have. A longer one is refused
	// with 413. One longer than MaxMemory is kept in a temporary file in os.TempDir(). Default:
	// DefaultMaxBody.
	MaxBody int64
	// BodyTimeout is how long the client of a guarded request may pause while it sends the body. After
	// that the request is refused with 408, as with fewer than 500 bytes a second. It is also how
	// long the client may take for 16 KiB of the answer. After that the transfer breaks, and the
	// handler continues. Default: DefaultBodyTimeout.
	BodyTimeout time.Duration

	// MaxConcurrent is how many requests with a key the Middleware serves at once, those that wait
	// included. A request counts from when its body has arrived until its key is settled. A further
	// one is refused with 503. Default: 0, no bound.
	MaxConcurrent int
	// MaxBodyMemory is how many bytes bodies and answers take at once: of requests, up to MaxMemory
	// each, as they arrive, and of answers, as they come. While a body is looked into, for its key or
	// its fingerprint, three times its longest value counts, too, and with MCP up to nine times the
	// params of a call. So does what a stored answer that is compressed becomes while it is sent. A
	// body that finds no room is refused with 503 and does not run; with 413 if there is never so
	// much. An answer waits for room, and one at a time may exceed the bound. Temporary files may
	// have four times as many bytes, and at least MaxBody. It must allow one request MaxMemory and
	// MaxStored. Default: a bound that all Middlewares of the process share, half of GOMEMLIMIT, or
	// 256 MiB without one.
	MaxBodyMemory int64

	// Lease is how long a key stays held after its holder crashed. At least 1 s. Default:
	// Options.TTL of the client, and 1 s if that is shorter.
	Lease time.Duration
	// Retention is how long an answer is kept, unless Idempotency-Control says otherwise: 1 s to
	// MaxRetention. Default: DefaultRetention.
	Retention time.Duration
	// Wait is how long a duplicate waits for the request that runs before it is answered with
	// ConflictStatus; at most MaxRetention. Default: 0.
	Wait time.Duration
	// ConflictStatus answers a duplicate of a request that still runs: a 4xx. Default:
	// DefaultConflictStatus.
	ConflictStatus int
	// MismatchStatus answers another request under a used key: a 4xx. Default: DefaultMismatchStatus.
	MismatchStatus int

	// MaxStored is the longest body, in bytes, of an answer that is kept; at most MaxStored. Default:
	// DefaultMaxStored.
	MaxStored int64
	// OnOversize says what a longer answer leaves behind. Default: Tombstone.
	OnOversize Oversize
	// OnCrash says what happens after an attempt without an outcome. Default: TakeOver.
	OnCrash Crash

	// Keep lists the statuses that are kept: a status such as "404", a class such as "2xx", or "default".
	// An answer that has Retry-After is kept only if Idempotency-Control says so. Default: "default",
	// which is 2xx, 3xx and 4xx, except 401, 407, 408, 409, 423, 425 and 429.
	Keep []string
	// KeepSetCookie keeps and replays Set-Cookie.
	KeepSetCookie bool
	// NotStored names more response fields that are neither kept nor replayed.
	NotStored []string

	// KeyRing encrypts stored answers, but not the request's key and fingerprint. If the ring cannot
	// decrypt an answer, or an answer is not encrypted and the ring does not have Plaintext, its
	// retries are refused with 410 and nothing runs. Default: no encryption.
	KeyRing *KeyRing
	// Redact changes an answer before it is stored. It may drop or replace fields, the trailer and
	// the body. It must not write into their bytes or values, because the first client gets them.
	// With a.NotKept it makes the answer count as too long. ctx is the request's context. Default:
	// nothing is changed.
	Redact func(ctx context.Context, a *Answer)

	// OnStoreFailure says what happens while the store does not answer. Default: FailClosed.
	OnStoreFailure StoreFailure
	// StoreTimeout limits a call of the store, before the handler runs and after it. The client's
	// dibs.Options.Timeout limits it, too. Default: DefaultStoreTimeout.
	StoreTimeout time.Duration
	// HandlerLimit is how long a handler runs before its context ends. Default:
	// DefaultHandlerLimit.
	HandlerLimit time.Duration

	// Transactor begins a transaction for each run, in the database that has the keys. What the
	// handler writes in it and the answer are committed together, and a crash leaves both or
	// neither. The handler finds the transaction in its request's context, by a function of the
	// store. If the database rolls the transaction back because of a conflict with another one, the
	// handler runs again with the same request, up to dibs.MaxConflicts times in all and within
	// HandlerLimit, unless part of its answer was sent. Requests without a guard have no
	// transaction. Not together with AtMostOnce or FailOpen. Default: none.
	Transactor dibs.Transactor
	// Commits says with which statuses the transaction is committed. With others it is rolled back
	// before the answer is stored and sent. Default: below 400.
	Commits func(status int) bool

	// WriteProblem writes refusals in the shape of the API's own errors: WriteStripeError,
	// WriteACPError, WriteUCPError, WriteJSONAPIError, WriteJSONRPCError or a function of the application, which must
	// send p.Status and Retry-After. Requests of gRPC and Connect are answered in their protocol by the
	// functions named here. Default: WriteProblem.
	WriteProblem ProblemWriter

	// Logger gets one warning for each of these: requests without any part of the scope, with
	// credentials that differ each time, without the key that Key looks for, and with a key that came
	// with another request (Fingerprint.KeyAlone); answers that replace a part of the scope; handlers
	// that call WriteHeader twice; and stored answers that cannot be read. That the store fails is logged by the client. Default:
	// Options.Logger of the client.
	Logger *slog.Logger

	// Observe is called once for every request, when its outcome is known, on the request's
	// goroutine and with its context. It must not block. Default: none.
	Observe func(context.Context, Event)

	// Trace returns the name of the trace that a context is in, as a traceparent (W3C Trace
	// Context). It is stored with the answer, and Event.First has it when the answer is replayed.
	// Default: nothing is stored.
	Trace func(context.Context) string

	maxMemory int64 // MaxMemory, except in tests
}

// MaxMemory is the longest body of a request, in bytes, that is kept in memory.
const MaxMemory = 1 << 20

// MaxStored bounds Options.MaxStored, in bytes, because answers are in memory until they are stored.
const MaxStored = 1 << 30

// shares returns the budgets for bodies: those of the process, or others if they are too small for one
// request.
func (o *Options) shares() *memory.Shares {
	s := memory.Process()
	if o.MaxBodyMemory > 0 {
		s = memory.NewShares(o.MaxBodyMemory)
	} else if least := min(o.MaxBody, o.maxMemory) + o.MaxStored; least > s.Memory.Most() {
		s = memory.NewShares(least)
	}
	if o.MaxBody > s.Files.Most() {
		s = &memory.Shares{Memory: s.Memory, Records: s.Records, Files: memory.New(o.MaxBody)}
	}
	return s
}

// safeMethods are methods that change nothing, and are never guarded.
var safeMethods = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace}

// withDefaults returns a copy whose fields have values. of is what the client has.
func (o *Options) withDefaults(of dibs.Options) Options {
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
	r.Logger = cmp.Or(r.Logger, of.Logger)
	r.NotStored = slices.Clone(r.NotStored)
	r.Fingerprint.Fields = slices.Clone(r.Fingerprint.Fields)
	r.BodyTimeout = cmp.Or(r.BodyTimeout, DefaultBodyTimeout)
	r.MaxBody = cmp.Or(r.MaxBody, DefaultMaxBody)
	r.maxMemory = cmp.Or(r.maxMemory, MaxMemory)
	r.Lease = cmp.Or(r.Lease, max(of.TTL, minLease))
	r.Retention = cmp.Or(r.Retention, DefaultRetention)
	r.ConflictStatus = cmp.Or(r.ConflictStatus, DefaultConflictStatus)
	r.MismatchStatus = cmp.Or(r.MismatchStatus, DefaultMismatchStatus)
	r.MaxStored = cmp.Or(r.MaxStored, DefaultMaxStored)
	if r.KeyPer == "" && r.Key != nil {
		r.KeyPer = KeyPerPath
	}
	r.KeyPer = cmp.Or(r.KeyPer, KeyPerPrincipal)
	r.OnOversize = cmp.Or(r.OnOversize, Tombstone)
	r.OnCrash = cmp.Or(r.OnCrash, TakeOver)
	r.OnStoreFailure = cmp.Or(r.OnStoreFailure, FailClosed)
	r.StoreTimeout = cmp.Or(r.StoreTimeout, DefaultStoreTimeout)
	r.HandlerLimit = cmp.Or(r.HandlerLimit, DefaultHandlerLimit)
	if r.WriteProblem == nil {
		r.WriteProblem = WriteProblem
	}
	if r.Observe == nil {
		r.Observe = func(context.Context, Event) {}
	}
	if r.Redact == nil {
		r.Redact = func(context.Context, *Answer) {}
	}
	if r.Trace == nil {
		r.Trace = func(context.Context) string { return "" }
	}
	return r
}

// commits reports whether the transaction of a run is committed. By default, what the handler wrote
// before it found the reason of a refusal must not stay.
func (o *Options) commits(status int) bool {
	if o.Commits != nil {
		return o.Commits(status)
	}
	return status < 400
}

// keepDefault stands for the default among other elements of Keep.
const keepDefault = "default"

// keepsStatus reports whether answers with the status are kept. By default these are the statuses
// that another attempt would not change. A failure of the server may pass, and time, the end of
// another request or other credentials may lift a refusal.
func (o *Options) keepsStatus(status int) bool {
	if len(o.Keep) > 0 {
		text := strconv.Itoa(status)
		if slices.Contains(o.Keep, text) || slices.Contains(o.Keep, text[:1]+"xx") {
			return true
		}
		if !slices.Contains(o.Keep, keepDefault) {
			return false
		}
	}
	switch status {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusConflict, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}
