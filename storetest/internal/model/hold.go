package model

import (
	"cmp"
	"time"

	"github.com/dibs-go/dibs"
)

// press makes the reserved place whose turn has come run out after its Hold, now
// that a claim with so many places ahead of it is kept from the key.
func (s *state) press(ahead int, now time.Time) {
	free := len(s.holders) < s.permits || s.b.bug == HoldWhileHeld
	if !free || ahead == 0 || len(s.queue) == 0 {
		return
	}
	p := s.queue[0] // the others have their turns after it
	hold := p.claim.Hold
	if s.b.bug == HoldRounded {
		hold = hold.Truncate(time.Millisecond)
	}
	if p.reserved() && hold > 0 && !p.pressed {
		q := *p
		q.pressed = true
		ends := now.Add(hold)
		if ends.Before(p.ends) || s.b.bug == HoldOutlastsPlace {
			q.ends = s.until(ends)
		}
		s.queue[0] = &q
	}
}

// refused is press for a claim that is answered Held.
func (s *state) refused(c dibs.Claim, ahead int, now time.Time) {
	if c.Mode != dibs.Reserve || s.b.bug == HoldStartsAtReserve {
		s.press(ahead, now)
	}
}

// prolonged returns what a place is now that its own token's claim has prolonged it.
func (s *state) prolonged(was *place, is place, c dibs.Claim) *place {
	is.pressed = false
	switch s.b.bug {
	case HoldNotSetAnew:
		is.claim.Hold = was.claim.Hold
	case HoldSetByTry:
		if c.Mode == dibs.Try {
			is.claim.Hold = c.Hold
		}
	}
	return &is
}

// redeemedBy returns the place as it is when the claim is made from it.
func (p *place) redeemedBy(c dibs.Claim, bug Bug) *place {
	taken := *p
	taken.claim.Hold = c.Hold
	if bug != RedeemersHoldAlways {
		taken.claim.Hold = cmp.Or(c.Hold, p.claim.Hold)
	}
	return &taken
}
