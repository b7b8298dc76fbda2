package dibs

import (
	"time"

	"github.com/dibs-go/dibs/store"
)

// EventKind says what happened.
type EventKind string

// What can happen to a claim and to a lease. Every Acquire ends in exactly one of the first
// two. Every lease ends in exactly one of the others, unless the client is closed first.
const (
	EventAcquired  EventKind = "acquired"
	EventRefused   EventKind = "refused" // not acquired; Event.Err says why
	EventReleased  EventKind = "released"
	EventCompleted EventKind = "completed" // it left a record behind
	EventAbandoned EventKind = "abandoned" // its holder called Abandon
	EventLost      EventKind = "lost"
)

// Event is what Options.Observe gets. It names the key only by its digest, so it can be
// logged.
type Event struct {
	Kind  EventKind
	Label string // as in Options or AcquireOptions
	Fence uint64 // 0 when it was refused
	// Queued says that the key was not free and the caller waited for its turn.
	Queued  bool
	Waited  time.Duration // from the call to the grant or the refusal
	Held    time.Duration // from the grant to the end; 0 before the end
	Settled time.Duration // the last part of Held: how long the settlement took
	// Attempt is more than 1 if the last holder abandoned the key; see Lease.Attempt.
	Attempt int
	Err     error
	// InTx says that the lock is one of the application's transaction, so that no event tells its
	// end. Only sqllock sets it.
	InTx bool

	key   Key
	token store.Token
}

// WithKey returns the event of another key. It is for packages that observe other locks as a Client
// observes its leases.
func (e Event) WithKey(key Key) Event {
	e.key = key
	return e
}

// Key returns the key's digest.
func (e *Event) Key() string { return e.key.Digest() }

// ID returns the ID of the lease; "" if it was refused.
func (e *Event) ID() string {
	if e.token.IsZero() {
		return ""
	}
	return e.token.ID()
}

// StoreCall is one call of a store, as Options.ObserveStore gets it.
type StoreCall struct {
	Verb   string // "claim", "renew" or "settle"
	Size   int    // how many claims, leases or settlements it had
	Undone int    // how many of them undid a claim whose caller stopped waiting or whose outcome was unknown
	Took   time.Duration
	Err    error // why the store did not answer, or did not carry out all of it because of the store; if the call's context ended, with its cause
}
