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
// and a record end by the backend's clock. What has ended is dead at that moment,
// also when no call has noticed it yet: none brings it back to life.
// Durations may be as long as a time.Duration goes; a store that cannot count
// that far takes the longest that it can.
//
// # The queue
//
// A place is a number. A waiter gets the next one when it joins the queue, and the
// lowest number is served first. A reserved place is a number, too, and a claim From
// it is an ordinary waiter at that number, with a token and a Stay of its own.
//
// At each moment one place is in front: the lowest number that is in the way. The
// places of a number are in nobody's way while a lease that was granted at that
// number stands, because their work is under way. A reserved place is not in the way
// while a waiter stands at its number, because the waiter stands for it.
//
// A claim is granted when nothing is in front of it, when no lease stands at its
// number, and when the leases leave room for it: every one of them has the claim's
// Permits, and their weights and the claim's are no more than that together. So
// the number of permits may change: a claim with another number waits until all
// leases with the old number have ended, and those behind it wait, too.
//
// An abandoned lease is remembered in one row a key: how many there were in a row,
// and the progress that was saved last. The next holder is told of it. A lease that
// ends cleanly (Release, Keep) deletes the row.
//
// Package storetest checks all of this.
type Store interface {
	// Claim looks each key up and takes its lease in one step. It is
	// idempotent: a token that already holds its key is granted the same fence
	// and attempt again, and its lease lasts TTL from now.
	Claim(ctx context.Context, claims []Claim, answers []Answer) error

	// Renew makes each lease last TTL from now. errs[i] is nil when the token
	// holds its key, ErrLost when it does not (nothing is changed then), and
	// otherwise says why this element failed alone; it may have been renewed all
	// the same, which does no harm.
	Renew(ctx context.Context, renewals []Renewal, errs []error) error

	// Settle ends each lease, or gives a place up, and serves the next waiters in the
	// same step. errs[i] is nil when that is done, ErrLost when the token neither
	// holds the key nor has a place (nothing is changed then), and otherwise says why
	// this element failed alone.
	//
	// A record is written only if the token holds the key, in the same step. When a
	// settlement with a record is sent twice and the record of the first one still
	// stands, the second one is answered nil, too. A token that only waits cannot
	// leave a record: it is answered ErrLost and keeps its place.
	//
	// Release and Keep delete all places at the number at which the lease was
	// granted. The waiters among them are woken. Abandon, Undo and the end of the
	// lease's time leave the reserved place, so that the next claim From it is in
	// front again. The token of a reserved place gives that place up, and nothing
	// else: waiters at its number and a lease stay.
	Settle(ctx context.Context, settlements []Settlement, errs []error) error
}

// Mode says what a Claim does when the key cannot be had at once.
type Mode uint8

const (
	// Try takes the key or leaves it. A token that waits keeps its place, and is
	// granted when its turn has come.
	Try Mode = iota
	// Queue takes the key or joins its queue. Asking again with the same token
	// keeps the place and finds out whether its turn has come.
	Queue
	// Reserve takes a place for a later claim From it, or keeps it. It is never
	// granted. Its token makes no other claims.
	Reserve
	// Look changes nothing and says what Try would find.
	Look
)

// AnyAge as a Claim's MaxAge accepts every record that is still kept.
const AnyAge time.Duration = math.MaxInt64

// PushedTTL is how long the lease of a pushed grant lasts (see Notifier), unless the
// waiter claims again or renews it.
const PushedTTL = time.Second

// AbandonedRetention is how long a store remembers, at least, that a lease ran
// out without being settled. An unknown outcome is remembered for ever.
const AbandonedRetention = 24 * time.Hour

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

	// Stay is how long the token's place lasts without being asked for again. At
	// least 1 ms with Queue and Reserve, not used with Try and Look.
	Stay time.Duration

	// From is the token of a reserved place, which is not the claim's; zero for none.
	// With Try, Queue and Look. The claim has that place's number, unless its own
	// token has a place, which then counts. If the reserved place does not stand any
	// more, From changes nothing: Queue joins at the end.
	From Token

	// Hold is how long a reserved place may keep others from the key while no lease
	// and no waiter has its number. It counts from the first Try or Queue that finds
	// room for itself and is Held because of a reserved place. A grant of the key ends
	// that count, and so does the end of its last place. If the place was asked for
	// with Reserve later, it counts from then. When Hold is over the place is over,
	// however long it was to stand. 0: as long as the place stands.
	//
	// Reserve sets it each time. A claim From the place sets it when it is granted,
	// unless its Hold is 0. Invalid with other claims.
	Hold time.Duration

	// Permits is how many permits the key has, 1 (a mutex) to MaxPermits, and Weight
	// how many of them the claim takes, 1 to Permits. Not used with Reserve.
	Permits, Weight int

	// Fingerprint of what is asked. It is compared with those of the leases, of the last
	// abandoned lease, and of a record that MaxAge accepts. A difference is answered
	// Mismatch.
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
	// Done means that a record answers the claim. The token's place is given up.
	Done
	// Mismatch means that the fingerprint differs. The token's place is given up.
	Mismatch
	// Unknown means that a lease with AtMostOnce ended without an outcome. The key is
	// not granted until an operator resolves it (see Inspector).
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
	// across a loss of the store's data. Held, from a store that tells grants (see
	// Notifier): no grant of the key before this answer has a higher one.
	Fence uint64
	// Granted: 1 + how many leases of this key in a row were abandoned before
	// this one.
	Attempt int
	// Granted: what was saved last under the leases in a row that were abandoned
	// before this one, if anything; a holder that saves nothing passes it on.
	// Unmodified by the store.
	Progress []byte

	// Held: the time until the first of the key's leases ends unless it is renewed.
	// More than 0 while there is a lease. 0: the key has no lease, and a place is
	// what keeps the token from it.
	Left time.Duration
	// Held: at most this many places come before the token's (or would come,
	// if it has none). 0 means that it is next.
	Ahead int
	// Held, Free: the token has a place, or the place stands that the claim is From.
	Queued bool

	// Done: the record.
	Record Record

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
	// Undo deletes the lease and nothing else, as if it had not been granted: what
	// the next holder is told of abandoned leases is what this one was told. It is for
	// claims whose answer was lost. A token that only waits gives its place up, as with
	// Release.
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

// Notifier is implemented by stores that tell the waiters of this process that their
// turn has come. It is a hint: nothing breaks when a wake-up is lost, late or one too
// many.
type Notifier interface {
	// Notify calls wake, which never blocks, with a waiter's token, and either with
	// the zero Answer (it should ask again) or with its grant. stop ends that.
	//
	// A store may tell a grant where the waiter needs no more than that to begin: not
	// to a claim with AtMostOnce, which would be unknown if the word was lost; not after an
	// abandoned lease; not where a record or another holder's fingerprint would answer
	// the claim. The lease is made in the same step that freed the key, and lasts one
	// PushedTTL, or the claim's TTL if that is shorter. If it runs out it was abandoned, because its
	// holder may have begun. The grant may be told late: it counts only if its fence is
	// higher than that of the last answer to the token.
	//
	// If a store knows that no process listens for a waiter, it passes the waiter over,
	// and the waiter keeps its number. A waiter in front that is woken to ask keeps the
	// others from the key until it asks, or until its Stay is over.
	Notify(wake func(Token, Answer)) (stop func())
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
