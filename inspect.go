package dibs

import (
	"context"
	"iter"
	"time"
)

// Inspector is implemented by stores that can list their keys and be forced.
// It serves operators; nothing in a Client's normal work calls it.
type Inspector interface {
	// List yields what the store knows about the keys that match the query, in
	// no particular order, each entry as one consistent look. It ends with the
	// first error.
	List(ctx context.Context, q Query) iter.Seq2[Entry, error]

	// ForceRelease ends the leases of a key, whoever holds them: all, or the one that
	// the ID names if id is not "". Their holders lose them as if they had
	// settled (Release); nothing counts as abandoned. An unknown or abandoned attempt is
	// forgotten likewise. Waiters move up. It returns how many attempts were
	// ended. Records stay.
	ForceRelease(ctx context.Context, key Key, id string) (int, error)

	// Forget deletes the key's record and forgets an abandoned or unknown
	// attempt, so that the next claim runs. Live leases and places stay. It
	// reports whether there was anything to forget.
	Forget(ctx context.Context, key Key) (bool, error)

	// Resolve gives an unknown outcome its record. It reports false, and
	// changes nothing, unless the key's state is Unknown and, if id is not "",
	// id names that attempt.
	Resolve(ctx context.Context, key Key, id string, data []byte, retention time.Duration) (bool, error)
}

// Pruner is implemented by stores that keep what has ended until it is swept
// out. They do so on their own; Prune is for those who want it now.
type Pruner interface {
	// Prune removes up to limit ended records, places and abandoned attempts
	// (all, if limit is 0) and returns how many it removed.
	Prune(ctx context.Context, limit int) (int, error)
}

// Query selects keys. The zero Query selects all of all namespaces.
type Query struct {
	// Namespace, when not nil, is the only one looked at.
	Namespace *string
	// Name, when not "", is the only key looked at.
	Name string
	// ID, when not "", selects the keys with an attempt or a record of that ID.
	ID string
	// Data asks for the records' data too.
	Data bool
	// Places asks for the places too.
	Places bool
}

// Condition is what an operator sees of a key.
type Condition string

// The conditions of a key, the first that applies.
const (
	ConditionHeld      Condition = "held"      // somebody holds it
	ConditionUnknown   Condition = "unknown"   // an AtMostOnce attempt ended without an outcome
	ConditionWaiting   Condition = "waiting"   // nobody holds it, somebody has a place
	ConditionDone      Condition = "done"      // there is a record
	ConditionAbandoned Condition = "abandoned" // the last lease ran out unsettled
)

// Entry is what a store knows about one key.
type Entry struct {
	Key       Key
	Condition Condition
	Permits   int       // of the leases; 0 when nobody holds it
	Attempts  []Attempt // who holds it, abandoned it, or left its outcome unknown
	Waiters   int       // places in the queue
	Places    []PlaceInfo
	Record    *RecordInfo
}

// Attempt is one lease, live or abandoned.
type Attempt struct {
	ID      string
	Owner   Owner
	Fence   uint64
	Attempt int           // as in Answer
	Since   time.Duration // how long ago it was granted
	Left    time.Duration // until it runs out; not positive when it has
}

// PlaceInfo is what a store knows about a place in a key's queue. They come in the order
// of their turns, and only when the Query asked for them; all, or the first 500 at least.
type PlaceInfo struct {
	// Token of the place, for Client.CancelPlace. Its ID names the place.
	Token Token
	// Owner took the place.
	Owner Owner
	Left  time.Duration // until it runs out
	// Reserved is false for the place of a caller that waits in Acquire, which asks for
	// it again and again, and ends soon after its caller.
	Reserved bool
}

// RecordInfo is what a store knows about a record.
type RecordInfo struct {
	ID    string // of the attempt that wrote it
	Bytes int
	Age   time.Duration
	Left  time.Duration
	Data  []byte // only when the Query asked for it
}
