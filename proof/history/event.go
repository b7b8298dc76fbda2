package history

import "time"

// Kind says what an Event tells of.
type Kind string

// The kinds of events.
const (
	// Of a store, one for each element of a call: what dibs.Store has, and what its
	// notifications told. Together they are all that the store was asked and said.

	Claim  Kind = "claim"
	Renew  Kind = "renew"
	Settle Kind = "settle"
	Told   Kind = "told" // a grant that came without being asked for; Call is when the token was claimed first

	// Of a worker, which uses a client on that store.

	Enter  Kind = "enter"  // the section of a key is entered, with Fence
	Leave  Kind = "leave"  // it is left; Error says why, if not at its own wish
	Write  Kind = "write"  // a write to the resource of a key, which remembers the highest fence
	Effect Kind = "effect" // what is to happen once for a key has happened
	Reply  Kind = "reply"  // what somebody who wanted a key done once was told

	// Of whoever runs the workers.

	Killed  Kind = "killed"  // a process was killed, with all that it did; Call to Return
	Stopped Kind = "stopped" // a process stood still from Call to Return
	Fault   Kind = "fault"   // Name bit from Call to Return; Times says how often
	Calm    Kind = "calm"    // there is no fault any more
)

// Event is a call with its answer, or something that happened. What does not belong to
// its Kind is zero.
//
// Times are those of the host's monotonic clock, which all processes share and nobody
// steps.
type Event struct {
	Kind    Kind   `json:"kind"`
	Process int    `json:"process,omitempty"` // who; 0 is whoever runs the workers
	Life    int    `json:"life,omitempty"`    // how often the process had been started again by then
	ID      uint64 `json:"id,omitempty"`      // of a call, within its process's life

	Call   time.Duration `json:"call,omitempty"`   // before it left
	Return time.Duration `json:"return,omitempty"` // after the answer came; 0: it never came

	Key   string `json:"key,omitempty"`
	Token string `json:"token,omitempty"` // in hexadecimal digits

	// What was asked.

	Mode        string        `json:"mode,omitempty"` // try, queue, reserve, look
	TTL         time.Duration `json:"ttl,omitempty"`
	Place       time.Duration `json:"place,omitempty"`
	Hold        time.Duration `json:"hold,omitempty"`
	Redeems     string        `json:"redeems,omitempty"`
	Permits     int           `json:"permits,omitempty"`
	Fingerprint string        `json:"fingerprint,omitempty"`
	MaxAge      time.Duration `json:"maxAge,omitempty"`
	AtMostOnce  bool          `json:"atMostOnce,omitempty"`
	Outcome     string        `json:"outcome,omitempty"` // release, keep, abandon, undo
	Data        string        `json:"data,omitempty"`    // of the record: what it holds, or its digest
	Retention   time.Duration `json:"retention,omitempty"`

	// What was answered.

	State   string        `json:"state,omitempty"` // granted, held, free, done, mismatch, permits differ, unknown
	Error   string        `json:"error,omitempty"` // see the constants
	Fence   uint64        `json:"fence,omitempty"`
	Attempt int           `json:"attempt,omitempty"`
	Ahead   int           `json:"ahead,omitempty"`
	Queued  bool          `json:"queued,omitempty"`
	Left    time.Duration `json:"left,omitempty"`

	Name  string `json:"name,omitempty"`  // of a fault
	Times int    `json:"times,omitempty"` // how often it bit
	Text  string `json:"text,omitempty"`  // for people to read
}

// What an Event's Error can be. Any other text is that of an element that failed alone,
// with nothing done for it.
const (
	Lost    = "lost"    // dibs.ErrLost
	Unknown = "unknown" // the call failed: it may or may not have happened, or may yet
	Refused = "refused" // the resource has seen a higher fence
)

// Heard reports whether the answer came, and says what happened.
func (e *Event) Heard() bool { return e.Return != 0 && e.Error != Unknown }
