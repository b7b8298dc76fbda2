package dibs

import (
	"context"
	"math"
	"time"
)

// Store is what a backend implements. Users do not call it; they hold a
// *Client, which batches, waits, renews and undoes on top of it.
//
// Each method takes a slice, answers element i in place i of the second slice
// (which has the same length and zeroed elements), and needs as few round trips
// as the backend allows, one where it can. Each element is atomic on its own.
// The methods may be called concurrently. They must not keep a slice, nor
// anything that a slice's elements point to, after they return.
//
// An error that a method returns means that the outcome of every element is
// unknown: it may or may not have happened. An element that failed alone, with
// nothing done for it, says so in its own answer. A method returns soon after
// its context ends.
//
// Time is the backend's: durations travel, deadlines never do. A lease, a place
// and a record end by the backend's clock, and what has ended is dead even
// while nobody else has noticed: no call brings it back to life.
// Durations may be as long as a time.Duration goes; a store that cannot count
// that far takes the longest that it can.
//
// Package storetest checks all of this.
type Store interface {
	// Claim looks each key up and takes its lease in one step. It is
	// idempotent: a token that already holds its key is granted the same fence
	// and attempt again, its lease lasting TTL from now.
	Claim(ctx context.Context, claims []Claim, answers []Answer) error

	// Renew makes each lease last TTL from now. errs[i] is nil when the token
	// holds its key, ErrLost when it does not (nothing is changed then), and
	// otherwise says why this element failed alone; it may have been renewed all
	// the same, which does no harm.
	Renew(ctx context.Context, renewals []Renewal, errs []error) error

	// Settle ends each lease, or gives up a waiting token's place. errs[i] is
	// nil when that is done, ErrLost when the token neither holds the key nor
	// waits for it (nothing is changed then), and otherwise says why this
	// element failed alone. A record is written only if the token holds the
	// key, in the same step; when a settlement with a record is sent twice and
	// the first one's record still stands, the second one is answered nil too.
	// A token that merely waits cannot leave a record: it is answered ErrLost
	// and keeps its place. A waiter that was granted in its absence and has not
	// confirmed gives up its turn; what the next one is told of abandoned
	// leases and their progress stays as it was. The token of a place that a
	// lease has taken gives up the place, and the lease stays. The next waiter is
	// granted in the same step, or woken if its place is reserved.
	Settle(ctx context.Context, settlements []Settlement, errs []error) error
}

// Mode says what a Claim does when the key cannot be had at once.
type Mode uint8

const (
	// Try takes the key or leaves it. A token that has a place keeps it, and
	// is granted when its turn has come.
	Try Mode = iota
	// Queue takes the key or joins its queue. Asking again with the same token
	// keeps the place and finds out whether its turn has come.
	Queue
	// Reserve joins the queue (or keeps the place there) and is never granted:
	// the place stands, and nobody behind it is granted, until a claim redeems it
	// (see Claim.Redeems; or one with the same token), it is settled, or its Place
	// or its Hold is over.
	Reserve
	// Look changes nothing and says what Try would find.
	Look
)

// AnyAge as a Claim's MaxAge accepts every record that is still kept.
const AnyAge time.Duration = math.MaxInt64

// Turn is how long a waiter that was granted in its absence has to confirm by
// claiming again. Then its turn is over and it has left the queue.
const Turn = time.Second

// AbandonedMemory is how long a store remembers, at least, that a lease ran
// out without being settled. An unknown outcome is remembered for ever.
const AbandonedMemory = 24 * time.Hour

// Claim asks for a key.
type Claim struct {
	Key  Key
	Mode Mode

	// Token names the attempt. A zero token is an invalid claim (two callers
	// that forgot to make one would share the lease), except with Look.
	Token Token

	// TTL is how long the lease lasts without being renewed. At least 1 ms;
	// not used with Look and Reserve, which grant nothing.
	TTL time.Duration

	// Place is how long a place in the queue lasts without being asked for
	// again. At least 1 ms with Queue and Reserve. With Try it prolongs a place
	// that the token already has, and 0 leaves that place as it is. Not used with
	// Redeems: a reserved place is its own token's to prolong.
	Place time.Duration

	// Redeems names the reserved place that the claim is made from, by the
	// place's token, which is not the claim's; zero for none. Only with Try and
	// Look.
	//
	// The claim is granted when that place's turn has come; if its own token had
	// a place too, that one is given up then. While the lease stands, the place is
	// taken: it is in nobody's way, it does not run out, and whoever else claims
	// from it, or by its own token, is answered Held and Queued. Such a claim
	// changes nothing, but for the time that the place's own token asks for.
	// Release and Keep give the place up together with the lease. When the lease
	// is abandoned, undone or runs out, the place stands again where it stood, for
	// as long from then on as was last asked for. A claim from a place that is not
	// taken and is answered Done or Mismatch gives it up. A place that does not
	// stand (any more), or whose own token waits or holds the key, is as none.
	//
	// Such a claim is never granted in its absence. When the place's turn comes a
	// Notifier wakes the place's token, and whoever redeems it claims again.
	Redeems Token

	// Hold is how long a reserved place may keep others from the key once its turn
	// has come. It counts from the first Try or Queue of another that is answered
	// Held because of it, while the place is the first in the queue and a permit is
	// free; not from one that waits for a lease that has taken its place. The place runs
	// out no later than that, however long it was to stand. So a place that
	// nobody redeems is in nobody's way for longer, and one whose redeemer is late
	// because all of them are loses nothing. 0: until the place runs out.
	//
	// It does not count any more once the place's own token prolongs the place, or
	// a claim takes it: should it stand again, Hold is counted anew. With Reserve,
	// which sets it each time; and with Redeems, where it is what the place has from
	// when the claim takes it, unless it is 0.
	Hold time.Duration

	// Permits is how many holders the key may have at once: 1 (a mutex) to
	// MaxPermits. All claims of a key must agree while it is held or waited
	// for; one that does not is answered PermitsDiffer.
	Permits int

	// Fingerprint of what is asked. It is compared with that of whoever holds,
	// abandoned or finished the key last; a difference is answered Mismatch.
	Fingerprint Fingerprint

	// MaxAge is the age up to which a record answers this claim. At 0 no
	// record does, and the claim is one for a lock: an older record is neither
	// looked at nor harmed.
	MaxAge time.Duration

	// AtMostOnce makes the key's state unknown, instead of free, if this lease
	// runs out unsettled. Only with one permit.
	AtMostOnce bool

	// Owner is for people to read.
	Owner Owner
}

// State is what a store says of a key.
type State uint8

const (
	_ State = iota
	// Granted means that the token holds the key.
	Granted
	// Held means that others hold the key or stand before this token in its queue.
	Held
	// Free means that a Look found that Try would be granted.
	Free
	// Done means that a record answers the claim.
	Done
	// Mismatch means that the fingerprint differs.
	Mismatch
	// PermitsDiffer means that those who hold the key or wait for it agreed on another
	// number of permits.
	PermitsDiffer
	// Unknown means that a lease with AtMostOnce ended without an outcome. Nobody is
	// granted until somebody resolves it (see Inspector).
	Unknown
)

// Answer is what a Claim got. Which fields are set depends on the State.
type Answer struct {
	State State

	// Err, when not nil, says why this claim failed alone, with nothing done
	// for it: ErrFull at one of the store's limits, ErrBusy when asking again may
	// help, or an invalid claim.
	Err error

	// Granted: the fencing token. It rises with every grant of a key, also
	// across a loss of the store's data. Held, from a GrantNotifier: no grant of
	// the key before this answer has a higher one, also none that was lost since.
	Fence uint64
	// Granted: 1 + how many leases of this key in a row were abandoned before
	// this one.
	Attempt int
	// Granted: what was saved last under the leases in a row that were abandoned
	// before this one, if anything; a holder that saves nothing passes it on.
	// Unmodified by the store.
	Progress []byte

	// Held: the time until the first lease or place in the way can run out,
	// that is, until something changes even if nobody settles.
	Left time.Duration
	// Held: at most this many places come before the token's (or would come,
	// if it has none). 0 means that it is next.
	Ahead int
	// Held: the token has a place in the queue.
	Queued bool
	// Held: the key lies idle. A permit is free, and it is another's place, the first
	// and a reserved one that no lease has taken, that keeps the token from it.
	// Never for a claim from a place that a lease has taken.
	Idle bool

	// Done: the record.
	Record Record

	// PermitsDiffer: the number that holds.
	Permits int

	// Unknown: the public name of the claim whose outcome is unknown.
	ID string
}

// Record is what a finished holder left behind.
type Record struct {
	Data []byte        // not to be modified
	Age  time.Duration // since it was written
	Left time.Duration // until it is forgotten
}

// Renewal asks that a lease last longer.
type Renewal struct {
	Key   Key
	Token Token
	TTL   time.Duration // from now; at least 1 ms

	// Progress, when not nil, is kept with the lease and given to the next
	// holder if this one abandons it. At most MaxProgress bytes.
	Progress []byte
}

// Outcome is how a lease ends.
type Outcome uint8

const (
	// Release leaves nothing behind.
	Release Outcome = iota
	// Keep leaves a record behind. Waiters whose MaxAge accepts it are answered
	// by it.
	Keep
	// Abandon ends the lease as if it had run out now: the next holder is told,
	// and with AtMostOnce the outcome is unknown from now on.
	Abandon
	// Undo ends the lease as if it had not been granted: what the next holder is
	// told of abandoned leases and their progress is what this one was told, what
	// this one saved is dropped, and with AtMostOnce nothing is unknown. For
	// claims that nobody heard the answer of. A token that merely waits, or was
	// offered the key, gives that up as with Release.
	Undo
)

// Settlement ends a lease or gives up a place.
type Settlement struct {
	Key     Key
	Token   Token
	Outcome Outcome

	// Keep: the record's data and how long it is kept, at least 1 ms.
	Data      []byte
	Retention time.Duration
}

// Notifier is implemented by stores that can tell waiters when to ask again.
// It is a hint: nothing breaks when a wake-up is lost, late or one too many.
type Notifier interface {
	// Notify calls wake, which never blocks, with each token that waits in
	// this process and should ask again: a reserved place's when its turn has
	// come, and, if others claimed from it while a lease had it, when that ends.
	// stop ends that.
	Notify(wake func(Token)) (stop func())
}

// GrantNotifier is a Notifier whose wake-ups can be the grant itself, so that a
// waiter need not ask once more. Its Answers that are Held have a Fence: no
// grant of the key before them has a higher one.
//
// A grant that is told is a lease of one Turn from the moment it was made, and is
// renewed and settled as any other; one that runs out was abandoned, as its holder
// may have begun. It may be told late: it counts only if its fence is higher than
// that of the last answer to the token, and it was made after that was asked for.
//
// Some are not told but offered, and woken to ask: claims with AtMostOnce, which
// would be unknown if nobody heard; those after an abandoned lease, unless all that
// they have to hear of it is told; those of which another holder's fingerprint
// differs; and those who listen with Notify alone. Reserved places are woken.
type GrantNotifier interface {
	Notifier

	// NotifyGrants is Notify for those who can take a grant. The Answer's State
	// is Granted, or zero when the token should ask again.
	NotifyGrants(wake func(Token, Answer)) (stop func())
}

// Batcher is implemented by stores for which the default batching is wrong.
type Batcher interface {
	Batching() Batching
}

// Batching says how a Client should call a Store.
type Batching struct {
	// Direct makes every call on its own, at once, on the caller's goroutine:
	// right for a store that answers without leaving the process, or that
	// batches by itself.
	Direct bool
	// Immediate says that a call never waits for anything, so that no time
	// limit has to be put on it.
	Immediate bool
	// Size is how many elements one call may have; 512 when 0.
	Size int
	// Parallel is how many calls of one kind may be under way; 1 when 0.
	Parallel int
}
