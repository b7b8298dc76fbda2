package history

import "time"

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
