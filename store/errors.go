package store

import (
	"errors"

	"github.com/dibs-go/dibs/internal/errtype"
)

// What a store answers to one element. Each has a method ErrorType() string, for error.type of
// metrics.
var (
	// ErrLost: the token does not hold the key. The lease expired or was taken away.
	ErrLost = errtype.New("lost", "dibs: the lease is lost")
	// ErrFull: the store has reached one of its limits. Nothing was done.
	ErrFull = errtype.New(errtype.Full, "dibs: the store is full")
	// ErrQueueFull: the key's queue has as many places as the store allows. It is also an
	// ErrFull. Nothing was done.
	ErrQueueFull = errtype.New(errtype.Full, "%w: the key has too many places", ErrFull)
	// ErrTooLarge: the store refuses data of that size, so asking again does not help. It
	// is also an ErrFull. Nothing was done.
	ErrTooLarge = errtype.New("too_large", "%w: that is too large for it", ErrFull)
	// ErrBusy: the store gave up, because too many calls used the key at once, or another
	// program had locked the key's data for too long. Nothing was done, and asking again
	// may help. A caller that waits for the key keeps waiting.
	ErrBusy = errtype.New(errtype.Busy, "dibs: the store is busy with the key")
	// ErrClosed: the store, or the client, was closed.
	ErrClosed = errtype.New(errtype.Closed, "dibs: the client is closed")
)

// Definite reports whether the error with which a store answered an element says that nothing
// was done: ErrLost, ErrFull and ErrBusy do.
func Definite(err error) bool {
	return errors.Is(err, ErrLost) || errors.Is(err, ErrFull) || errors.Is(err, ErrBusy)
}
