package dibs

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/store"
)

// A request is a claim and what its caller wants of the lease.
type request struct {
	store.Claim
	// parent is what the lease's context derives from.
	parent context.Context
	// stopTimeout and maxLifetime are those of AcquireOptions.
	stopTimeout, maxLifetime time.Duration
	// start and queued are for the observer: when it was made, and that it waits.
	start  time.Time
	queued bool
	// kept says that the place was there before, so that there is nothing to undo.
	kept bool
}

// refusal turns an answer that is not a grant into the caller's error.
func refusal(claim store.Claim, a store.Answer) error {
	switch a.State {
	case store.Held:
		return &HeldError{Key: claim.Key, Left: a.Left, Ahead: a.Ahead}
	case store.Done:
		return &DoneError{Key: claim.Key, Record: a.Record}
	case store.Mismatch:
		return ErrMismatch
	case store.Unknown:
		return &UnknownError{Key: claim.Key, ID: a.ID}
	}
	return &StoreError{Op: "claim", Err: fmt.Errorf("the store answered with state %d", a.State)}
}
