package model

import (
	"cmp"
	"time"

	"github.com/dibs-go/dibs"
)

// press makes the reserved place whose turn has come run out after its Hold, now
// that a claim with so many places ahead of it is kept from the key.
func (s *state) press(ahead int, now time.Time) {
	free := len(s.holders) < s.permits
	switch s.b.bug {
	case HoldIgnored:
		return
	case HoldWhileHeld:
		free = true
	case HoldNeedsNoHolder:
		free = len(s.holders) == 0
	}
	if !free {
		return
	}
	for i, p := range s.queue[:min(ahead, len(s.queue))] {
		hold := p.claim.Hold
		if s.b.bug == HoldRounded {
			hold = hold.Truncate(time.Millisecond)
		}
		if p.reserved() && hold > 0 && (!p.pressed || s.b.bug == HoldRestarts) {
			q := *p
			q.pressed = true
			ends := now.Add(hold)
			if ends.Before(p.ends) || s.b.bug == HoldRestarts || s.b.bug == HoldOutlastsPlace {
				q.ends = s.until(ends)
			}
			s.queue[i] = &q
		}
		if s.b.bug != HoldOfAll {
			return // the others have their turns after it
		}
	}
}

// refused is press for a claim that is answered Held.
func (s *state) refused(c dibs.Claim, ahead int, now time.Time) {
	presses := c.Mode != dibs.Reserve
	switch s.b.bug {
	case HoldStartsAtReserve:
		presses = true
	case HoldStartsAtTryAlone:
		presses = c.Mode == dibs.Try
	case HoldStartsAtQueueAlone:
		presses = c.Mode == dibs.Queue
	case HoldFromTheTurn:
		ahead = max(ahead, 1)
		presses = true
	}
	if presses {
		s.press(ahead, now)
	}
}

// prolonged returns what a place is now that its own token's claim has prolonged it.
func (s *state) prolonged(was *place, is place, c dibs.Claim) *place {
	is.pressed = false
	switch s.b.bug {
	case HoldOutlastsProlonging:
		if was.pressed {
			is.pressed, is.ends = true, was.ends
		}
	case HoldOnceProlonged:
		is.pressed = was.pressed
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
	switch bug {
	case RedeemersHoldIgnored:
	case RedeemersHoldAlways:
		taken.claim.Hold = c.Hold
	default:
		taken.claim.Hold = cmp.Or(c.Hold, p.claim.Hold)
	}
	return &taken
}
