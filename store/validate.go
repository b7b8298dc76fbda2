package store

import (
	"errors"
	"fmt"
	"time"
)

// MinDuration is the shortest TTL, PlaceTTL and Retention that a store accepts.
const MinDuration = time.Millisecond

// Validate returns nil for a claim that stores accept. Otherwise it returns the error with
// which every store answers the claim. The error names the field.
func (c *Claim) Validate() error {
	switch {
	case c.Mode > Look:
		return fmt.Errorf("dibs: Claim.Mode is %d; there is no such mode", c.Mode)
	case c.Mode != Reserve && (c.Permits < 1 || c.Permits > MaxPermits):
		return fmt.Errorf("dibs: Claim.Permits is %d; it must be 1 to %d", c.Permits, MaxPermits)
	case c.Mode != Reserve && (c.Weight < 1 || c.Weight > c.Permits):
		return fmt.Errorf("dibs: Claim.Weight is %d; it must be 1 to Permits, which is %d", c.Weight, c.Permits)
	case c.AtMostOnce && c.Permits != 1:
		return errors.New("dibs: Claim.AtMostOnce needs one permit")
	case c.MaxAge < 0:
		return fmt.Errorf("dibs: Claim.MaxAge is %v; it must not be negative", c.MaxAge)
	case c.Grace < 0:
		return fmt.Errorf("dibs: Claim.Grace is %v; it must not be negative", c.Grace)
	case c.Grace > 0 && c.Mode != Reserve && c.From.IsZero():
		return errors.New("dibs: Claim.Grace is set; only a reserved place has one")
	case !c.From.IsZero() && c.Mode == Reserve:
		return errors.New("dibs: Claim.From is set; a reserved place is not made from another one")
	case !c.From.IsZero() && c.From == c.Token:
		return errors.New("dibs: Claim.From is the claim's own token; it must be that of a reserved place")
	}
	if c.Mode != Look && c.Token.IsZero() {
		return errors.New("dibs: Claim.Token is zero; NewToken makes one")
	}
	if (c.Mode == Try || c.Mode == Queue) && c.TTL < MinDuration {
		return fmt.Errorf("dibs: Claim.TTL is %v; it must be at least %v", c.TTL, MinDuration)
	}
	if (c.Mode == Queue || c.Mode == Reserve) && c.PlaceTTL < MinDuration {
		return fmt.Errorf("dibs: Claim.PlaceTTL is %v; it must be at least %v", c.PlaceTTL, MinDuration)
	}
	return c.Key.Validate()
}

// Validate returns nil for a renewal that stores accept, and otherwise an error that names
// the field, as Claim.Validate does.
func (r *Renewal) Validate() error {
	switch {
	case r.TTL < MinDuration:
		return fmt.Errorf("dibs: Renewal.TTL is %v; it must be at least %v", r.TTL, MinDuration)
	case len(r.Progress) > MaxProgress:
		return fmt.Errorf("dibs: Renewal.Progress has %d bytes; it may have at most %d", len(r.Progress), MaxProgress)
	}
	return r.Key.Validate()
}

// Validate returns nil for a settlement that stores accept, and otherwise an error that
// names the field, as Claim.Validate does.
func (s *Settlement) Validate() error {
	switch {
	case s.Outcome > Undo:
		return fmt.Errorf("dibs: Settlement.Outcome is %d; there is no such outcome", s.Outcome)
	case s.Outcome == Keep && s.Retention < MinDuration:
		return fmt.Errorf("dibs: Settlement.Retention is %v; it must be at least %v", s.Retention, MinDuration)
	}
	return s.Key.Validate()
}
