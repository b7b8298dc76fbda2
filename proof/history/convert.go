package history

import (
	"encoding/hex"
	"errors"

	"github.com/dibs-go/dibs/store"
)

// modes, outcomes and states are how those of a store are written down.
var (
	// modes, outcomes and states are the names of a store's constants in a history.
	modes    = [...]string{store.Try: "try", store.Queue: "queue", store.Reserve: "reserve", store.Look: "look"}
	outcomes = [...]string{store.Release: "release", store.Keep: "keep", store.Abandon: "abandon", store.Undo: "undo"}
	states   = [...]string{
		store.Granted: "granted", store.Held: "held", store.Free: "free", store.Done: "done", store.Mismatch: "mismatch", store.Unknown: "unknown",
	}
)

// OfClaim returns the event of a claim, before its answer.
func OfClaim(c *store.Claim) Event {
	e := Event{
		Kind: Claim, Key: c.Key.Name, Token: hex.EncodeToString(c.Token[:]), Mode: modes[c.Mode],
		TTL: c.TTL, PlaceTTL: c.PlaceTTL, Grace: c.Grace, Permits: c.Permits, Weight: c.Weight, MaxAge: c.MaxAge, AtMostOnce: c.AtMostOnce,
	}
	if !c.From.IsZero() {
		e.From = hex.EncodeToString(c.From[:])
	}
	if !c.Fingerprint.IsZero() {
		e.Fingerprint = hex.EncodeToString(c.Fingerprint[:8])
	}
	return e
}

// OfRenewal returns the event of a renewal, before its answer.
func OfRenewal(r *store.Renewal) Event {
	e := Event{Kind: Renew, Key: r.Key.Name, Token: hex.EncodeToString(r.Token[:]), TTL: r.TTL}
	if r.Progress != nil {
		e.Data = Data(r.Progress)
	}
	return e
}

// OfSettlement returns the event of a settlement, before its answer.
func OfSettlement(s *store.Settlement) Event {
	e := Event{Kind: Settle, Key: s.Key.Name, Token: hex.EncodeToString(s.Token[:]), Outcome: outcomes[s.Outcome]}
	if s.Outcome == store.Keep {
		e.Data, e.Retention = Data(s.Data), s.Retention
	}
	return e
}

// Answer adds the answer of a claim.
func (e *Event) Answer(a *store.Answer) {
	if a.Err != nil {
		e.failed(a.Err)
		return
	}
	e.State = states[a.State]
	switch a.State {
	case store.Granted:
		e.Fence, e.Attempt = a.Fence, a.Attempt
		if a.Progress != nil {
			e.Data = Data(a.Progress)
		}
	case store.Held:
		e.Fence, e.Ahead, e.Queued, e.Left = a.Fence, a.Ahead, a.Queued, a.Left
	case store.Done:
		e.Data = Data(a.Record.Data)
	}
}

// OfPushed returns the event of a pushed grant, for the token of a claim.
func OfPushed(claim Event, a *store.Answer) Event {
	claim.Kind, claim.ID, claim.TTL = Pushed, 0, min(claim.TTL, store.PushedTTL)
	claim.Answer(a)
	return claim
}

// Ended adds the answer of a renewal or a settlement.
func (e *Event) Ended(err error) {
	if err != nil {
		e.failed(err)
	}
}

// failed adds the error of an element that failed alone.
func (e *Event) failed(err error) {
	switch {
	case errors.Is(err, store.ErrLost):
		e.Error = Lost
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrBusy), errors.Is(err, store.ErrRolledBack), errors.Is(err, store.ErrTransactionEnded):
		e.Error = err.Error()
	default:
		// Nothing was done for it, or something that does no harm: a part of a Redis Cluster that
		// did not answer may have renewed, and a grant that no replica has was undone.
		e.Error, e.Text = Unknown, err.Error()
	}
}
