package idempotency

import (
	"time"

	"github.com/dibs-go/dibs"
)

// Outcome is what became of a request.
type Outcome string

// The outcomes of a request. Each request has one.
const (
	// OutcomeUnguarded: it was passed on without a guard, for its method, for want of a
	// key, or because it asked for another protocol.
	OutcomeUnguarded Outcome = "unguarded"
	// OutcomeRan: the handler ran and its answer was sent. Event.Stored says
	// whether it was kept.
	OutcomeRan Outcome = "ran"
	// OutcomeReplayed: the stored answer was sent.
	OutcomeReplayed Outcome = "replayed"
	// OutcomeConflict: another request with the key still runs.
	OutcomeConflict Outcome = "conflict"
	// OutcomeMismatch: the key was used for another request.
	OutcomeMismatch Outcome = "mismatch"
	// OutcomeNotKept: it ran before, and its answer was too long to keep.
	OutcomeNotKept Outcome = "not-kept"
	// OutcomeUnknown: it was tried before, and nobody knows how that ended.
	OutcomeUnknown Outcome = "unknown"
	// OutcomeInvalid: the key is missing or malformed, the body could not be read, or the
	// method is CONNECT.
	OutcomeInvalid Outcome = "invalid"
	// OutcomeTooLarge: the body is longer than Options.MaxBody.
	OutcomeTooLarge Outcome = "too-large"
	// OutcomeUnavailable: the store could not be asked; nothing ran.
	OutcomeUnavailable Outcome = "unavailable"
	// OutcomeBypassed: the store could not be asked, and the request ran
	// unguarded.
	OutcomeBypassed Outcome = "bypassed"
	// OutcomeLost: the lease was lost while the handler ran.
	OutcomeLost Outcome = "lost"
	// OutcomeInterrupted: the run ended without an answer: a panic, a broken
	// answer, an origin that hung up.
	OutcomeInterrupted Outcome = "interrupted"
	// OutcomeRolledBack: the run's transaction could not be committed, and nothing was
	// done; or the database was lost meanwhile, and a retry will tell.
	OutcomeRolledBack Outcome = "rolled-back"
	// OutcomeUnreached: the origin could not be reached; nothing was done.
	OutcomeUnreached Outcome = "unreached"
	// OutcomeCanceled: the client went away while it waited; nothing ran.
	OutcomeCanceled Outcome = "canceled"
)

// Event is what Options.Observe is told about one request. It names no key, credential
// or answer.
type Event struct {
	Outcome Outcome
	// Status that was sent; 0 when nothing was (a panic, a broken transfer, a
	// client that went away), or when the request was not guarded.
	Status int
	// Method of the request.
	Method string
	// Attempt of a run: 1, or more after abandoned ones.
	Attempt int
	// Fence of a run.
	Fence uint64
	// Conflicts is how often the run was made again because its transaction was in
	// conflict with another one.
	Conflicts int
	// Stored says that this run's answer, or a tombstone, is in the store.
	Stored bool
	// StoreFailed says that the answer was sent but could not be stored so far.
	StoreFailed bool

	// First is what Options.Trace said of the run whose answer was replayed.
	First string

	// Start is when the key was looked for, the body having been read; zero when there
	// is no valid key.
	Start time.Time
	// Waiting is how long the request waited from then on for others with its key,
	// Claiming how long the store was asked for the key, Handler how long the handler
	// ran, and Settling how long the store was asked to take the answer.
	Waiting, Claiming, Handler, Settling time.Duration

	// Err is why a request was not served, where there is a reason: never text
	// from the request.
	Err error

	key string // its name in the store
}

// Key is the short digest in which keys are logged; "" when there is no valid key.
func (e *Event) Key() string {
	if e.key == "" {
		return ""
	}
	return dibs.Key{Name: e.key}.Digest()
}

// Stats counts, since the Middleware was made, what no Event tells or what
// happens after it.
type Stats struct {
	// ControlIgnored counts Idempotency-Control values that made no sense.
	ControlIgnored uint64
	// StoreFailed counts answers that were sent but not stored at first.
	StoreFailed uint64
	// StoreRecovered counts those of them that were stored later, and
	// StoreGivenUp those whose lease ended before: a retry runs again.
	StoreRecovered, StoreGivenUp uint64
	// Bypassed counts requests that ran unguarded because of Options.OnStoreFailure.
	Bypassed uint64
}
