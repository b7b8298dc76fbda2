package memstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// The limits of Options, as an element's own error.
var (
	errTooManyKeys = fmt.Errorf("memstore: MaxKeys is reached: %w", dibs.ErrFull)
	errQueueFull   = fmt.Errorf("memstore: MaxWaiters of this key is reached: %w", dibs.ErrFull)
	errNoBytes     = fmt.Errorf("memstore: MaxBytes is reached: %w", dibs.ErrFull)
)

var errZeroToken = errors.New("memstore: the token is zero")

// shortest is the smallest TTL, place and retention.
const shortest = time.Millisecond

func validateClaim(c *dibs.Claim) error {
	takes := c.Mode == dibs.Try || c.Mode == dibs.Queue
	joins := c.Mode == dibs.Queue || c.Mode == dibs.Reserve
	switch {
	case c.Mode > dibs.Look:
		return fmt.Errorf("memstore: the claim's mode is %d", c.Mode)
	case c.Permits < 1 || c.Permits > dibs.MaxPermits:
		return fmt.Errorf("memstore: the claim has %d permits; it must have 1 to %d", c.Permits, dibs.MaxPermits)
	case c.AtMostOnce && c.Permits != 1:
		return fmt.Errorf("memstore: the claim has AtMostOnce and %d permits; it may have only 1", c.Permits)
	case c.MaxAge < 0 || c.Place < 0:
		return errors.New("memstore: the claim's MaxAge or Place is negative")
	case c.Mode != dibs.Look && c.Token.IsZero():
		return errZeroToken
	case takes && c.TTL < shortest:
		return tooShort("claim's TTL", c.TTL)
	case joins && c.Place < shortest:
		return tooShort("claim's Place", c.Place)
	}
	return c.Key.Validate()
}

func validateRenewal(r *dibs.Renewal) error {
	switch {
	case r.Token.IsZero():
		return errZeroToken
	case r.TTL < shortest:
		return tooShort("renewal's TTL", r.TTL)
	case len(r.Progress) > dibs.MaxProgress:
		return fmt.Errorf("memstore: the progress has %d bytes; it may have at most %d", len(r.Progress), dibs.MaxProgress)
	}
	return r.Key.Validate()
}

func validateSettlement(x *dibs.Settlement) error {
	switch {
	case x.Token.IsZero():
		return errZeroToken
	case x.Outcome > dibs.Abandon:
		return fmt.Errorf("memstore: the settlement's outcome is %d", x.Outcome)
	case x.Outcome == dibs.Keep && x.Retention < shortest:
		return tooShort("settlement's Retention", x.Retention)
	}
	return x.Key.Validate()
}

func tooShort(what string, d time.Duration) error {
	return fmt.Errorf("memstore: the %s is %v; it must be at least %v", what, d, shortest)
}
