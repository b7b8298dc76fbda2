package dibs

import (
	"errors"
	"fmt"
	"time"
)

// Answers. They say that the store was asked and what it said. The text of an
// error names a key by its digest, because errors end up in logs; the typed
// error has the key itself.
var (
	// ErrHeld: another caller holds the key, or comes before this one. The
	// error is a *HeldError.
	ErrHeld = errors.New("dibs: the key is held")
	// ErrDone: a record answers the claim. The error is a *DoneError.
	ErrDone = errors.New("dibs: the key is done")
	// ErrMismatch: the key is in use, or was used, for something else.
	ErrMismatch = errors.New("dibs: the key was used with another fingerprint")
	// ErrUnknown: an earlier attempt, made with AtMostOnce, ended without an
	// outcome, and an operator has to resolve it. The error is an *UnknownError.
	ErrUnknown = errors.New("dibs: the outcome of an earlier attempt is unknown")
	// ErrFull: the store has reached one of its limits. Nothing was done.
	ErrFull = errors.New("dibs: the store is full")
	// ErrTooLarge: the store will never take that, because it is too large; asking again
	// does not help. It is an ErrFull. Nothing was done.
	ErrTooLarge = fmt.Errorf("%w: that is too large for it", ErrFull)
	// ErrBusy: the store gave up because too many calls were at the key at once, or
	// because another program had the key's data locked for too long. Nothing was done,
	// and asking again may help. A caller that waits for the key goes on waiting.
	ErrBusy = errors.New("dibs: the store is busy with the key")
)

// The life of a lease and of a client.
var (
	// ErrLost: the lease ran out or was taken away. It is the cause with which
	// the lease's context ends.
	ErrLost = errors.New("dibs: the lease is lost")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("dibs: the client is closed")
)

// ErrStore says that the store could not be asked, or its answer did not arrive. What
// was asked for may or may not have happened; what needed undoing is undone in
// the background. The error is a *StoreError.
var ErrStore = errors.New("dibs: the store did not answer")

// HeldError is the ErrHeld that a caller gets.
type HeldError struct {
	Key Key
	// Left is the time until the first lease of the key ends unless it is renewed; 0 when
	// no lease stands, and a place in the queue is what keeps the caller from the key.
	Left time.Duration
	// Ahead is how many places at most come before the caller's; 0 when it is next.
	Ahead int
	// Waited is how long the caller waited before it gave up; 0 when it did not.
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

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// DoneError is the ErrDone that a caller gets: the answer is there already.
type DoneError struct {
	Key    Key
	Record Record
}

func (e *DoneError) Error() string {
	return "dibs: the key " + e.Key.Digest() + " is done since " + round(e.Record.Age)
}

// Is makes errors.Is(err, ErrDone) true.
func (e *DoneError) Is(target error) bool { return target == ErrDone }

// UnknownError is the ErrUnknown that a caller gets.
type UnknownError struct {
	Key Key
	// ID names the attempt whose outcome is unknown.
	ID string
}

func (e *UnknownError) Error() string {
	return "dibs: the outcome of the attempt " + e.ID + " on the key " + e.Key.Digest() +
		" is unknown; it has to be settled by hand"
}

// Is makes errors.Is(err, ErrUnknown) true.
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// StoreError is the ErrStore that a caller gets.
type StoreError struct {
	Op  string // claim, renew or settle
	Err error  // what the store or the context said
}

func (e *StoreError) Error() string { return "dibs: " + e.Op + ": " + e.Err.Error() }

// Is makes errors.Is(err, ErrStore) true.
func (e *StoreError) Is(target error) bool { return target == ErrStore }

// Unwrap returns what the store or the context said.
func (e *StoreError) Unwrap() error { return e.Err }

// round prints a duration as people read it.
func round(d time.Duration) string {
	switch {
	case d > 10*time.Second:
		return d.Round(time.Second).String()
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
