package sim

import (
	"time"

	"github.com/dibs-go/dibs"
)

// redeemers are the claims that wait at reserved places, by the places' tokens, and the
// places that leases have taken, by the leases' tokens.
type redeemers struct {
	waiting map[dibs.Token]redeemer
	taken   map[dibs.Token]dibs.Token
}

// redeemer is a claim and until when it waits.
type redeemer struct {
	claim dibs.Claim
	until time.Time
}

func newRedeemers() redeemers {
	return redeemers{map[dibs.Token]redeemer{}, map[dibs.Token]dibs.Token{}}
}

// claimed notes what a claim was answered.
func (r redeemers) claimed(c *dibs.Claim, a *dibs.Answer) {
	if a.Err != nil || c.Mode != dibs.Try && c.Mode != dibs.Queue {
		return
	}
	delete(r.waiting, c.Token) // a place whose own token wants the key is none to redeem
	if c.Redeems.IsZero() {
		return
	}
	delete(r.waiting, c.Redeems)
	switch {
	case a.State == dibs.Granted:
		r.taken[c.Token] = c.Redeems
	case a.State == dibs.Held && a.Queued && c.Place > 0:
		r.waiting[c.Redeems] = redeemer{*c, time.Now().Add(c.Place)}
	}
}

// settled notes how a settlement was answered.
func (r redeemers) settled(x *dibs.Settlement, err error) {
	delete(r.waiting, x.Token)
	if w, ok := r.waiting[x.Redeems]; ok && w.claim.Token == x.Token {
		delete(r.waiting, x.Redeems)
	}
	if err == nil && (x.Outcome == dibs.Release || x.Outcome == dibs.Keep) {
		delete(r.waiting, r.taken[x.Token]) // its place is given up
	}
	if err == nil {
		delete(r.taken, x.Token)
	}
}

// next returns the claim that waits at a place and can be granted in its absence.
func (r redeemers) next(place dibs.Token) (c dibs.Claim, ok bool) {
	w, ok := r.waiting[place]
	if !ok || !time.Now().Before(w.until) || w.claim.AtMostOnce || w.claim.Permits > 1 {
		return c, false
	}
	return w.claim, true
}
