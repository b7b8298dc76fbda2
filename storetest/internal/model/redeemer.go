package model

import (
	"time"

	"github.com/dibs-go/dibs"
)

// awaitedBy returns the place as it is now that a claim from it is answered Held, and
// waits there for as long as it says.
func (p *place) awaitedBy(s *Store, c dibs.Claim, now time.Time) *place {
	stay := c.Place
	switch {
	case s.b.bug == FirstRedeemerWaits && p.waiter != nil:
		return p
	case s.b.bug == RedeemerUnasked && stay == 0:
		stay = p.claim.Place
	case stay == 0:
		return p
	}
	awaited := *p
	awaited.waiter = &place{claim: c, store: s, ends: now.Add(stay)}
	return &awaited
}

// waiterLeaves ends the wait of the claim that waits at a token's place, if there is
// one and that is who waits.
func (s *state) waiterLeaves(at dibs.Token, who func(waiter dibs.Token) bool) {
	i, l := s.place(at), s.taker(at)
	var p **place
	switch {
	case l != nil:
		p = &l.from
	case i >= 0:
		p = &s.queue[i]
	default:
		return
	}
	if w := (*p).waiter; w != nil && who(w.claim.Token) {
		left := **p
		left.waiter = nil
		*p = &left
	}
}

// asksFrom ends the waits at the places that a claim is made from.
func (s *state) asksFrom(c dibs.Claim) {
	anybody := func(dibs.Token) bool { return true }
	if c.Mode == dibs.Reserve {
		return
	}
	if s.b.bug != CalledBackIsTold {
		s.waiterLeaves(c.Token, anybody)
	}
	if s.b.bug != FirstRedeemerWaits && !c.Redeems.IsZero() {
		s.waiterLeaves(c.Redeems, anybody)
	}
}

// grantWaiter grants the key to the claim that waits at the first place, which is
// reserved, and tells it. It reports false, and does nothing, when there is none, or
// one that has to ask.
func (s *state) grantWaiter(p *place, now time.Time) bool {
	w := p.waiter
	switch {
	case w == nil, !w.ends.After(now) && s.b.bug != RedeemerWaitsOn:
		return false
	case !s.tells(w), s.holder(w.claim.Token) != nil:
		return false
	case (s.differs(w.claim) || s.answers(w.claim, now)) && s.b.bug != AnsweredRedeemerTold:
		return false
	}
	s.drop(0)
	if s.b.bug != ToldRedeemerKeepsPlace {
		s.leave(w.claim.Token)
		s.untake(w.claim.Token)
	}
	l := s.grant(w.claim, now)
	l.from = p.redeemedBy(w.claim, s.b.bug)
	if s.b.bug == ToldRedeemersHoldIgnored {
		l.from = p.redeemedBy(dibs.Claim{}, s.b.bug)
	}
	if s.b.bug != ToldRedeemerWaitsOn {
		l.from.waiter = nil
	}
	l.from.sought = true // the others who wait there have not heard of it
	s.tell(l, w, now)
	return true
}
