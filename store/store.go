package store

import (
	"context"
	"math"
	"time"
)

// Store is what a backend implements. Users do not call it: they hold a *Client, which
// batches, waits, renews and undoes.
//
// Each method takes a slice and writes the answer to element i at index i of the second
// slice, which has the same length and zeroed elements. It needs as few round trips as the
// backend allows, one if possible. Each element is atomic on its own. The methods may be
// called concurrently. After a method returns, it must not use the slices or anything that
// their elements point to.
//
// If a method returns an error, the outcome of every element is unknown: it may or may not
// have happened. An element that failed alone, with nothing done for it, says so in its own
// answer. A method returns soon after its context ends.
//
// Time is the backend's: calls carry durations, never deadlines. A lease, a place and a
// record end by the backend's clock. At that moment they have ended, even if no call has
// noticed it yet, and no call can make them live again. A duration may be any positive
// time.Duration. A store that cannot count so far uses its longest.
//
// # The queue
//
// A place is a number. A waiter gets the next number when it joins the queue, and the lowest
// number is served first. A reserved place is a number, too. A claim From it is an ordinary
// waiter at that number, with its own token and its own PlaceTTL.
//
// At each moment one place is in front: the lowest number that blocks. The places of a
// number do not block while a lease that was granted at that number is live, because their
// work is under way. A reserved place does not block while a waiter has its number, because
// the waiter represents it.
//
// A claim is granted if nothing is in front of it, no live lease has its number, and the
// leases leave room for it: all of them have the claim's Permits, and their weights and the
// claim's add up to no more than that. So the number of permits may change: a claim with
// another number waits until all leases with the old number have ended, and the claims
// behind it wait, too.
//
// Abandoned leases are remembered in one row a key: how many there were in a row, and the
// progress that was saved last. The next holder gets both. A lease that ends cleanly
// (Release, Keep) deletes the row.
//
// Package storetest checks all of this.
type Store interface {
	// Claim looks each key up and takes its lease in one step. It is idempotent: a token
	// that holds its key already is granted the same fence and attempt again, and its lease
	// lasts TTL from now.
	Claim(ctx context.Context, claims []Claim, answers []Answer) error

	// Renew makes each lease last TTL from now. errs[i] is nil if the token holds its key,
	// and ErrLost if it does not; nothing is changed then. Otherwise errs[i] says why this
	// element failed alone. The lease may have been renewed all the same, which does no
	// harm.
	Renew(ctx context.Context, renewals []Renewal, errs []error) error

	// Settle ends each lease, or gives a place up, and serves the next waiters in the same
	// step. errs[i] is nil if that was done, and ErrLost if the token neither holds the key
	// nor has a place; nothing is changed then. Otherwise errs[i] says why this element
	// failed alone. With ErrFull and ErrBusy nothing was done. After another error the outcome
	// of the element is unknown, as after an error of the call; see Definite.
	//
	// A settlement whose outcome is unknown may have been carried out, or be still on its way.
	// So its sender does not trust the lease any more, even if a renewal succeeds after it. The
	// sender may renew the lease and settle it again, until an answer is definite.
	//
	// A record is written in the same step, and only if the token holds the key. If a
	// settlement with a record is sent twice and the first record is still kept, the second
	// answer is nil, too. A token that only waits cannot leave a record: the answer is
	// ErrLost, and the token keeps its place.
	//
	// Release and Keep delete all places at the number at which the lease was granted, and
	// wake the waiters among them. Abandon, Undo and the expiry of the lease leave the
	// reserved place, so that the next claim From it is in front again. The token of a
	// reserved place gives up only that place: waiters at its number and a lease stay.
	Settle(ctx context.Context, settlements []Settlement, errs []error) error
}

// Mode says what a Claim does if it cannot get the key at once.
type Mode uint8

const (
	// Try takes the key or does nothing. A token that has a place keeps it, and is granted
	// the key if its turn has come.
	Try Mode = iota
	// Queue takes the key or joins its queue. To ask again with the same token keeps the
	// place and finds out whether its turn has come.
	Queue
	// Reserve takes a place for a later claim From it, or keeps that place. It is never
	// granted. Its token makes no other claims.
	Reserve
	// Look changes nothing and says what Try would find.
	Look
)

// AnyAge, as a Claim's MaxAge, accepts every record that is still kept.
const AnyAge time.Duration = math.MaxInt64

// PushedTTL is how long the lease of a pushed grant lasts (see Notifier), unless the
// waiter claims again or renews it.
const PushedTTL = time.Second

// AbandonedRetention is how long a store remembers, at least, that a lease expired without
// being settled. An unknown outcome is remembered until an operator resolves it.
const AbandonedRetention = 24 * time.Hour

// Claim asks for a key.
type Claim struct {
	Key  Key
	Mode Mode

	// Token names the claim and its lease. Zero is invalid, except with Look, because two callers that
	// forgot to make a token would share the lease.
	Token Token

	// TTL is how long the lease lasts without being renewed. At least 1 ms. Not used with
	// Look and Reserve, which grant nothing.
	TTL time.Duration

	// PlaceTTL is how long the token's place lasts without being asked for again. At least
	// 1 ms with Queue and Reserve. Not used with Try and Look.
	PlaceTTL time.Duration

	// From is the token of a reserved place, not the claim's own; zero for none. With Try,
	// Queue and Look. The claim has that place's number, unless its own token has a place,
	// which then counts. If the reserved place has ended, From changes nothing, and Queue
	// joins at the end.
	From Token

	// Grace is how long a reserved place may keep others from the key while no lease and no
	// waiter has its number. It counts from the first Try or Queue that finds room for
	// itself and is Held because of a reserved place, or from a later Reserve of the place.
	// A grant of the key ends that count, and so does the end of its last place. The place
	// ends when Grace is over, even if its PlaceTTL is not. 0: no limit but the PlaceTTL.
	//
	// Each Reserve sets it. A claim From the place sets it when it is granted, unless the
	// claim's Grace is 0. Invalid with other claims.
	Grace time.Duration

	// Permits is how many permits the key has, 1 (a mutex) to MaxPermits. Weight is how
	// many of them the claim takes, 1 to Permits. Not used with Reserve.
	Permits, Weight int

	// Fingerprint of what is asked. If it differs from that of a lease, of the last abandoned
	// lease or of a record that MaxAge accepts, the answer is Mismatch.
	Fingerprint Fingerprint

	// MaxAge is the age up to which a record answers this claim. At 0 no record does: the
	// claim is for a lock, and it neither reads nor changes the record.
	MaxAge time.Duration

	// AtMostOnce makes the key's state Unknown, and not free, if this lease is abandoned.
	// Only with one permit.
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
	// Held means that others hold the key or come before this token in its queue.
	Held
	// Free means that a Look found that Try would be granted.
	Free
	// Done means that a record answers the claim. The token's place is given up.
	Done
	// Mismatch means that the fingerprint differs. The token's place is given up.
	Mismatch
	// Unknown means that a lease with AtMostOnce ended without an outcome. The key is not
	// granted until an operator resolves it (see Inspector).
	Unknown
)

// Answer is the answer to a Claim. Which fields are set depends on the State.
type Answer struct {
	State State

	// Err, if not nil, says why this claim failed alone, with nothing done for it: ErrFull
	// at one of the store's limits, ErrBusy if asking again may help, or an invalid claim.
	Err error

	// Granted: the fencing token. It rises with every grant of a key, even after the store
	// has lost its data. Held, from a store that pushes grants (see Notifier): no grant of
	// the key before this answer has a higher one.
	Fence uint64
	// Granted: 1 + how many leases of this key in a row were abandoned before this one.
	Attempt int
	// Granted: the progress that was saved last under those abandoned leases, or nil. A
	// holder that saves nothing leaves it for the next.
	Progress []byte

	// Held: the time until the first of the key's leases expires unless it is renewed. More
	// than 0 while there is a lease. 0: the key has no lease, and a place keeps the token
	// from it.
	Left time.Duration
	// Held: at most how many places come before the token's, or would come if it has none.
	// 0: it is next.
	Ahead int
	// Held, Free: the token has a place, or the place exists that the claim is From.
	Queued bool

	// Done: the record.
	Record Record

	// Unknown: the public name of the claim whose outcome is unknown.
	ID string
}

// Record is what a finished holder left behind: the answer.
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

	// Progress, if not nil, is kept with the lease. The next holder gets it if this one
	// abandons the lease. At most MaxProgress bytes.
	Progress []byte
}

// Outcome is how a lease ends.
type Outcome uint8

const (
	// Release leaves nothing behind.
	Release Outcome = iota
	// Keep leaves a record behind. It answers the waiters whose MaxAge accepts it.
	Keep
	// Abandon ends the lease as if it had expired now: the next holder learns of it, and
	// with AtMostOnce the outcome is unknown.
	Abandon
	// Undo deletes the lease and nothing else, as if it had not been granted: the next
	// holder gets the same Attempt and Progress. It is for claims whose answer was lost. A
	// token that only waits gives its place up, as with Release.
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

// Relayer is implemented by stores that push grants.
type Relayer interface {
	// Relay says that the waiters of this process stand for callers of others, which ask again
	// with the same token at another process if this one ends, as the callers of a server do. It
	// is called before the first claim.
	//
	// If the turn of such a waiter comes while its process does not listen, its grant waits for the
	// caller for PushedTTL, unless it is a claim that no grant is pushed to. When a pushed grant of
	// such a waiter expires, or the waiter is passed over, its number waits for it: others are served,
	// and the waiter is in front again when it asks within its PlaceTTL.
	Relay()
}

// Notifier is implemented by stores that wake the waiters of this process when their turn
// has come. A wake-up is a hint: it may be lost, late or superfluous, and nothing breaks.
type Notifier interface {
	// Notify makes the store call wake, which never blocks, with a waiter's token. The
	// Answer is zero (the waiter should ask again) or the waiter's grant: a pushed grant.
	// stop ends these calls.
	//
	// A store may push a grant if the waiter needs nothing else to begin. It must not push
	// to a claim with AtMostOnce, because a lost push would leave an unknown outcome. It
	// must not push after an abandoned lease, or if a record or another holder's fingerprint
	// would answer the claim. The lease is granted in the same step that freed the key. It
	// lasts PushedTTL, or the claim's TTL if that is shorter. If it expires it was
	// abandoned, because its holder may have begun. A pushed grant may arrive late: it counts
	// only if its fence is higher than that of the last answer to the token.
	//
	// If a store knows that no process listens for a waiter, it serves the next one, and the
	// waiter keeps its number. A waiter in front that is woken to ask keeps the others from
	// the key until it asks, or until its PlaceTTL is over.
	Notify(wake func(Token, Answer)) (stop func())
}

// Batcher is implemented by stores for which the default batching is wrong.
type Batcher interface {
	Batching() Batching
}

// Batching says how a Client should call a Store.
type Batching struct {
	// Direct makes every call on its own, at once, on the caller's goroutine. It is for
	// stores that answer without leaving the process, or that batch by themselves.
	Direct bool
	// Immediate says that a call never waits for anything, so it needs no time limit.
	Immediate bool
	// Size is how many elements one call may have; 512 when 0.
	Size int
	// Parallel is how many calls of one kind may be under way; 1 when 0.
	Parallel int
}
