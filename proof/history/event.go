package history

import (
	"encoding/hex"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dibs-go/dibs/store"
)

// Kind says what happened in an Event.
type Kind string

// The kinds of events.
const (
	// Of a store: one for each element of a call, and one for each pushed grant.

	Claim  Kind = "claim"
	Renew  Kind = "renew"
	Settle Kind = "settle"
	Pushed Kind = "pushed" // a pushed grant; Call is when its token claimed first

	// Of a worker.

	Enter  Kind = "enter"  // a section of the key begins, with Fence
	Leave  Kind = "leave"  // the section ends; Error says why, if it had to
	Reply  Kind = "reply"  // a caller of Once got its result, Data
	Effect Kind = "effect" // an effect that a transaction committed together with the record of its key

	// Of the runner.

	Killed    Kind = "killed"     // a process was killed between Call and Return
	Stopped   Kind = "stopped"    // a process was stopped from Call to Return; Name is stall if it paused by itself
	Fault     Kind = "fault"      // a fault with Name hit Times times between Call and Return
	FaultsEnd Kind = "faults end" // the last fault is over
)

// Event is a call with its answer, or something that happened. Fields that do not belong to its
// Kind are zero.
//
// Times are those of the host's monotonic clock; see Now.
type Event struct {
	Kind     Kind   `json:"kind"`
	Process  int    `json:"process,omitempty"`  // 0 is the runner
	Restarts int    `json:"restarts,omitempty"` // how often the process had been started again before
	ID       uint64 `json:"id,omitempty"`       // of a call, within its process

	Call   time.Duration `json:"call,omitempty"`   // before it left
	Return time.Duration `json:"return,omitempty"` // after the answer came; 0: it never came

	Key   string `json:"key,omitempty"`
	Token string `json:"token,omitempty"` // in hexadecimal digits

	// What was asked.

	Mode        string        `json:"mode,omitempty"` // try, queue, reserve, look
	TTL         time.Duration `json:"ttl,omitempty"`
	PlaceTTL    time.Duration `json:"place_ttl,omitempty"`
	Grace       time.Duration `json:"grace,omitempty"`
	From        string        `json:"from,omitempty"` // the token of a reserved place
	Permits     int           `json:"permits,omitempty"`
	Weight      int           `json:"weight,omitempty"`
	Fingerprint string        `json:"fingerprint,omitempty"`
	MaxAge      time.Duration `json:"maxAge,omitempty"`
	AtMostOnce  bool          `json:"atMostOnce,omitempty"`
	Outcome     string        `json:"outcome,omitempty"` // release, keep, abandon, undo
	Data        string        `json:"data,omitempty"`    // of the record, or the progress: what it holds, or its digest
	Retention   time.Duration `json:"retention,omitempty"`

	// What was answered.

	State   string        `json:"state,omitempty"` // granted, held, free, done, mismatch, unknown
	Error   string        `json:"error,omitempty"` // see the constants
	Fence   uint64        `json:"fence,omitempty"`
	Attempt int           `json:"attempt,omitempty"`
	Ahead   int           `json:"ahead,omitempty"`
	Queued  bool          `json:"queued,omitempty"`
	Left    time.Duration `json:"left,omitempty"`

	Name  string `json:"name,omitempty"`  // of a fault
	Times int    `json:"times,omitempty"` // how often it hit
	Text  string `json:"text,omitempty"`  // for people to read
}

// What an Event's Error can be. Any other text is that of an element that failed alone,
// with nothing done for it.
const (
	Lost    = "lost"    // store.ErrLost
	Unknown = "unknown" // the call failed: it may or may not have happened, or may yet
)

// Answered reports whether the answer came and says what happened.
func (e *Event) Answered() bool { return e.Return != 0 && e.Error != Unknown }

// Now returns the time of the host's monotonic clock. All processes of the host share it,
// and it is never set.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("history: the system has no monotonic clock: " + err.Error())
	}
	return time.Duration(t.Nano())
}

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
