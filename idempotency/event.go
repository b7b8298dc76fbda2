package idempotency

import (
	"net/http"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/slow"
)

// ErrSlowClient is Event.Err of a request whose answer broke off, because its client took it too
// slowly (Options.BodyTimeout). What became of its run and its key is as without it.
var ErrSlowClient = slow.ErrSlow

// EventKind says how a request ended.
type EventKind string

// How a request can end. Each request has one event.
const (
	// EventUnguarded: the request ran without a guard, because of its method, because it had no
	// key, or because it asked for another protocol.
	EventUnguarded EventKind = "unguarded"
	// EventRan: the handler ran and its answer was sent. Event.Stored says whether it was kept.
	EventRan EventKind = "ran"
	// EventReplayed: the stored answer was sent.
	EventReplayed EventKind = "replayed"
	// EventConflict: another request with the key still runs.
	EventConflict EventKind = "conflict"
	// EventMismatch: the key was used for another request.
	EventMismatch EventKind = "mismatch"
	// EventNotKept: the request ran before, and its answer was too long to keep.
	EventNotKept EventKind = "not-kept"
	// EventUnknown: an earlier attempt ended without an outcome, and runs at most once.
	EventUnknown EventKind = "unknown"
	// EventInvalid: the key is missing or malformed, the body could not be read, or the method is
	// CONNECT.
	EventInvalid EventKind = "invalid"
	// EventTooLarge: the body is longer than Options.MaxBody.
	EventTooLarge EventKind = "too-large"
	// EventOverloaded: Options.MaxConcurrent or MaxBodyMemory was reached, and nothing ran. Event.Err
	// names the bound.
	EventOverloaded EventKind = "overloaded"
	// EventUnavailable: the store did not answer, and nothing ran.
	EventUnavailable EventKind = "unavailable"
	// EventBypassed: the store did not answer, and the request ran without a guard.
	EventBypassed EventKind = "bypassed"
	// EventLost: the lease was lost while the handler ran.
	EventLost EventKind = "lost"
	// EventInterrupted: the run ended without an answer: a panic, a broken answer, an origin that
	// hung up.
	EventInterrupted EventKind = "interrupted"
	// EventRolledBack: the run's transaction could not be committed, and nothing was done; or the
	// connection to the database was lost, and a retry finds out.
	EventRolledBack EventKind = "rolled-back"
	// EventUnreached: the origin could not be reached; nothing was done.
	EventUnreached EventKind = "unreached"
	// EventHeldBack: the request would have ended a guarded call of MCP that runs, and was not passed on.
	EventHeldBack EventKind = "held-back"
	// EventCanceled: the client went away while it waited; nothing ran.
	EventCanceled EventKind = "canceled"
)

// Event describes one request to Options.Observe. Its fields have no key, credential or
// answer.
type Event struct {
	Kind EventKind
	// Status that was sent; 0 if none was (a panic), if the transfer broke, or if the request had no
	// guard.
	Status int
	// Problem is the name of the problem document that refused the request, such as key-invalid; ""
	// if none was sent.
	Problem string
	// Method of the request.
	Method string
	// Attempt of a run: 1, or more after abandoned attempts.
	Attempt int
	// Fence of a run.
	Fence uint64
	// Conflicts is how often the handler ran again because its transaction was in conflict with
	// another one.
	Conflicts int
	// Stored says that this run's answer, or a tombstone, is in the store.
	Stored bool
	// StoreFailed says that the answer was sent and is not stored yet.
	StoreFailed bool

	// First is what Options.Trace returned for the run whose answer was replayed.
	First string

	// Start is when the request, whose body had been read, looked for its key; zero if there is no
	// valid key.
	Start time.Time
	// Waiting is how long the request then waited for others with its key.
	Waiting time.Duration
	// Claiming and Settling are how long the store took to claim and to settle the key.
	Claiming, Settling time.Duration
	// Handler is how long the handler ran.
	Handler time.Duration

	// Err is why a request was not served, or its answer broke off, if there is a reason. It has no
	// text of the request.
	Err error

	key dibs.Key // in the store
}

// Key returns the short digest by which keys are logged; "" if there is no valid key.
func (e *Event) Key() string {
	if e.key.Name == "" {
		return ""
	}
	return e.key.Digest()
}

// StoreKey returns the key in the store, whose name has what the client chose; the zero Key if there
// is not a valid key. log/slog writes its digest.
func (e *Event) StoreKey() dibs.Key { return e.key }

// observe calls Options.Observe with what happened.
func (x *exchange) observe(kind EventKind) {
	x.observed = true
	x.event.Kind = kind
	if x.w.WasCut() {
		x.event.Status = 0
		if x.event.Err == nil {
			x.event.Err = ErrSlowClient
		}
	}
	x.m.observe(x.req.Request, x.event)
}

// observe calls Options.Observe.
func (m *Middleware) observe(r *http.Request, e Event) {
	e.Method = r.Method
	m.options.Observe(r.Context(), e)
}
