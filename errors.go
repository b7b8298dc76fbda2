package dibs

import (
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/store"
)

// Answers of the store. Each has a method ErrorType() string, for error.type of metrics. The
// text of an error names a key by its digest, because errors end up in logs. The typed error
// has the key itself.
var (
	// ErrHeld: another caller holds the key or comes before this one. The error is a
	// *HeldError.
	ErrHeld = errtype.New("held", "dibs: the key is held")
	// ErrDone: a record answers the claim. The error is a *DoneError.
	ErrDone = errtype.New("done", "dibs: the key is done")
	// ErrMismatch: the key is in use, or was used, for something else.
	ErrMismatch = errtype.New("mismatch", "dibs: the key was used with another fingerprint")
	// ErrUnknown: an earlier attempt with AtMostOnce ended without an outcome, and an
	// operator must resolve it. The error is an *UnknownError.
	ErrUnknown = errtype.New("unknown_outcome", "dibs: the outcome of an earlier attempt is unknown")
	// ErrFull: the store has reached one of its limits. Nothing was done.
	ErrFull = store.ErrFull
	// ErrQueueFull: the key's queue has as many places as the store allows. It is also an
	// ErrFull. Nothing was done.
	ErrQueueFull = store.ErrQueueFull
	// ErrTooLarge: the store refuses data of that size, so asking again does not help. It
	// is also an ErrFull. Nothing was done.
	ErrTooLarge = store.ErrTooLarge
	// ErrBusy: too many calls used the key at once, or another program had locked the key's
	// data for too long. Nothing was done, and asking again may help.
	ErrBusy = store.ErrBusy
)

// The ends of a lease and of a client.
var (
	// ErrLost: the lease expired or was taken away, or it may be over because its settlement
	// was not answered. It is the cause with which the lease's context ends.
	ErrLost = store.ErrLost
	// ErrClosed: the client was closed.
	ErrClosed = store.ErrClosed
)

// The ends of a transaction.
var (
	// ErrRolledBack: the transaction was rolled back instead of committed, so nothing in it
	// was done.
	ErrRolledBack = store.ErrRolledBack
	// ErrTransactionEnded: the code that ran in the transaction has ended it before the
	// commit. Its writes may be committed, but there is no record, so the next caller runs
	// again.
	ErrTransactionEnded = store.ErrTransactionEnded
)

// ErrStore: the store could not be asked, or its answer did not arrive. The call may or may
// not have happened. A claim is then undone in the background, and a lease that was to be
// settled is not trusted any more. The error is a *StoreError.
var ErrStore = errors.New("dibs: the store did not answer")

// HeldError is the ErrHeld that a caller gets.
type HeldError struct {
	Key Key
	// Left is the time until the first lease of the key expires unless it is renewed. 0: the
	// key has no lease, and a place in the queue keeps the caller from the key.
	Left time.Duration
	// Ahead is how many places at most come before the caller's; 0 when it is next.
	Ahead int
	// Waited is how long the caller waited before it gave up; 0 if it did not wait.
	Waited time.Duration
}

func (e *HeldError) Error() string {
	s := "dibs: the key " + e.Key.Digest() + " is held"
	if e.Waited > 0 {
		return s + ", after waiting " + round(e.Waited)
	}
	if e.Left == 0 {
		return "dibs: others wait for the key " + e.Key.Digest() + " before the caller"
	}
	return s + ", for " + round(e.Left) + " more at most unless it is renewed"
}

// Unwrap makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Unwrap() error { return ErrHeld }

// DoneError is the ErrDone that a caller gets, with the record that answers.
type DoneError struct {
	Key    Key
	Record Record
}

func (e *DoneError) Error() string {
	return "dibs: the key " + e.Key.Digest() + " is done since " + round(e.Record.Age)
}

// Unwrap makes errors.Is(err, ErrDone) true.
func (e *DoneError) Unwrap() error { return ErrDone }

// UnknownError is the ErrUnknown that a caller gets.
type UnknownError struct {
	Key Key
	// ID names the attempt whose outcome is unknown.
	ID string
}

func (e *UnknownError) Error() string {
	return "dibs: the outcome of the attempt " + e.ID + " on the key " + e.Key.Digest() +
		" is unknown; an operator must resolve it"
}

// Unwrap makes errors.Is(err, ErrUnknown) true.
func (e *UnknownError) Unwrap() error { return ErrUnknown }

// unansweredError is the ErrLost of a lease whose settlement was not answered.
type unansweredError struct{ key Key }

func (e *unansweredError) Error() string {
	return "dibs: the lease of key " + e.key.Digest() + " is not trusted any more: its settlement was not answered; it may be over"
}

// Unwrap makes errors.Is(err, ErrLost) true.
func (e *unansweredError) Unwrap() error { return ErrLost }

// StoreError is the ErrStore that a caller gets.
type StoreError struct {
	Op  string // claim, renew or settle
	Err error  // what the store or the context said
}

func (e *StoreError) Error() string { return "dibs: " + e.Op + ": " + e.Err.Error() }

// Unwrap makes errors.Is(err, ErrStore) true, and finds what the store or the context said.
func (e *StoreError) Unwrap() []error { return []error{ErrStore, e.Err} }

// round prints a duration for people.
func round(d time.Duration) string {
	switch {
	case d > 10*time.Second:
		return d.Round(time.Second).String()
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
