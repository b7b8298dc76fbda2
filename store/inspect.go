package store

import (
	"context"
	"iter"
	"time"
)

// Inspector is implemented by stores that can list their keys and let an operator resolve
// them. A Client does not use it.
type Inspector interface {
	// List yields what the store knows about the keys that match the query, in no
	// particular order. Each entry is consistent in itself. List ends with the first error.
	List(ctx context.Context, q Query) iter.Seq2[Entry, error]

	// ForceRelease ends all leases of a key, or the one with that ID if id is not "". It
	// ends them as Release does, so nothing counts as abandoned, and their holders lose
	// them. An unknown or abandoned one is forgotten in the same way. The next waiters
	// are served. Records stay. ForceRelease returns how many it ended.
	ForceRelease(ctx context.Context, key Key, id string) (int, error)

	// Forget deletes the key's record and forgets an abandoned or unknown lease, so that
	// the next claim runs. If id is not "", it forgets only what has that ID: the record, or
	// the lease. Live leases and places stay. Forget reports whether there was anything to
	// forget.
	Forget(ctx context.Context, key Key, id string) (bool, error)

	// Resolve gives an unknown outcome its record. It returns false and changes nothing if
	// the key's state is not Unknown, or if id is not "" and names another lease.
	Resolve(ctx context.Context, key Key, id string, data []byte, retention time.Duration) (bool, error)
}

// Pruner is implemented by stores that keep ended data until they delete it in the
// background. Prune deletes it now.
type Pruner interface {
	// Prune removes up to limit ended records, places and abandoned leases
	// (all, if limit is 0) and returns how many it removed.
	Prune(ctx context.Context, limit int) (int, error)
}

// Query selects keys. The zero Query selects all of all namespaces.
type Query struct {
	// Namespace, if not nil, selects the keys of that namespace.
	Namespace *string
	// Name, if not "", selects the keys of that name.
	Name string
	// Match, if not nil, selects the keys that it returns true for. A store asks it before it
	// reads more than the key.
	Match func(Key) bool
	// ID, if not "", selects the keys with a lease or a record of that ID.
	ID string
	// Conditions, if not empty, selects the keys in one of them. There may be a million keys
	// that are ConditionDone, and the others are few. So a store that can finds the others
	// without going through those, and it reads those without the others.
	Conditions []Condition
	// HeldFor, if not 0, leaves out the keys that are held, but not yet for that long, and that
	// no claim waits for: a busy store has thousands of those.
	HeldFor time.Duration
	// Data asks for the records' data too.
	Data bool
	// Places asks for the places too.
	Places bool
}

// Condition is what an operator sees of a key.
type Condition string

// The conditions of a key, the first that applies.
const (
	ConditionHeld      Condition = "held"      // it has a lease
	ConditionUnknown   Condition = "unknown"   // an AtMostOnce lease ended without an outcome
	ConditionWaiting   Condition = "waiting"   // it has no lease, but a waiter or a reserved place
	ConditionDone      Condition = "done"      // it has a record
	ConditionAbandoned Condition = "abandoned" // the last lease expired unsettled
)

// Entry is what a store knows about one key.
type Entry struct {
	Key       Key
	Condition Condition
	Permits   int   // of the leases; 0 if there is none
	Runs      []Run // the leases, and the abandoned or unknown one
	Waiters   int   // claims that wait now
	// Reserved is how many reserved places there are that no waiter and no lease has the number
	// of: places of claims that are still to come.
	Reserved int
	Places   []PlaceInfo
	Record   *RecordInfo
}

// Run is one run under a key: a lease, live or abandoned.
type Run struct {
	ID      string
	Owner   Owner
	Fence   uint64
	Attempt int           // as in Answer
	Since   time.Duration // how long ago it was granted
	Left    time.Duration // until it expires; not positive if it has expired
}

// PlaceInfo is what a store knows about a place in a key's queue. Places come in their
// order, and only if the Query asked for them: all of them, or at least the first 500.
type PlaceInfo struct {
	// Token of the place, for Client.CancelPlace. Its ID names the place.
	Token Token
	// Owner took the place.
	Owner Owner
	Left  time.Duration // until it expires
	// Reserved is false for the place of a waiter, which ends soon after the waiter stops
	// asking for it.
	Reserved bool
	// Use is what a reserved place is used for now.
	Use Use
	// Blocks is how much longer a reserved place can keep others from the key while its
	// claim does not come: what is left of its Grace, at most Left. It is 0 for a waiter.
	Blocks time.Duration
}

// Use says whether the claim From a reserved place has come.
type Use string

// The uses of a reserved place.
const (
	Unused      Use = ""      // no claim From it holds the key or waits
	UsedByWait  Use = "waits" // a waiter has its number
	UsedByLease Use = "holds" // a lease was granted at its number
)

// RecordInfo is what a store knows about a record.
type RecordInfo struct {
	ID    string // of the lease that wrote it
	Bytes int
	Age   time.Duration
	Left  time.Duration
	Data  []byte // only if the Query asked for it
}
