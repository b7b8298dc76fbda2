package model

// Bug is a mistake that the model makes if it is switched on.
type Bug string

// The mistakes. The comments name code that makes them.
const (
	None Bug = ""

	// Wakes is not a mistake: it makes the other kind of store, which pushes no grants and
	// skips no waiter.
	Wakes Bug = "none, and wakes"

	KeyTruncated       Bug = "key truncated"                                                // VARCHAR(255).
	KeyFolded          Bug = "key folded in case"                                           // A case-insensitive collation.
	KeyTrimmed         Bug = "trailing spaces ignored"                                      // PAD SPACE.
	KeyEndsAtNUL       Bug = "key ends at its first NUL"                                    // A C string.
	ClaimKeepsTTL      Bug = "a claim again does not extend the lease"                      // A claim that is sent again leaves the lease as long as it was.
	RecordCut          Bug = "record cut to 64 KiB"                                         // The record is cut to the size of the column.
	MaxAgeIgnored      Bug = "MaxAge ignored"                                               // The answer is the record, however old.
	KeepsSlices        Bug = "the caller's slices kept"                                     // The answer is a pointer into the caller's slice.
	BatchMerges        Bug = "one answer for each key of a batch"                           // INSERT … ON CONFLICT over the batch, one row for each key.
	MismatchJoins      Bug = "a mismatch takes a place"                                     // The fingerprint is compared last.
	AnsweredKeepsPlace Bug = "an answered waiter keeps its place"                           // Only a grant and a settlement delete a place.
	AnsweredEndsFrom   Bug = "a claim that a record answers ends the place that it is from" // Every answer deletes all that the claim names.

	ProgressStops        Bug = "progress not passed on by a holder that saves nothing"           // The column is set with each abandonment.
	UndoForgetsAbandoned Bug = "an undone lease forgets what was abandoned before it"            // The grant takes the abandoned row over.
	UnknownForgotten     Bug = "an unknown outcome is forgotten in time"                         // Unknown outcomes are swept with the records.
	AbandonedUnsorted    Bug = "leases that expired together count in the order of their grants" // SELECT … WHERE ends <= now.
	AbandonedForgotten   Bug = "an abandoned lease is forgotten at once"                         // The sweep deletes all that has expired.

	ResolveAny          Bug = "Resolve without comparing the ID" // Resolve takes any ID.
	PruneLive           Bug = "Prune removes live data"          // The sweep deletes what it finds without looking at the time.
	ForceReleaseStrands Bug = "ForceRelease serves no waiter"    // ForceRelease leaves the queue as it is.
	ForgetAny           Bug = "Forget without comparing the ID"  // Forget takes any ID.
	ForgetReleases      Bug = "Forget ends live leases"          // DELETE FROM keys WHERE key = ?.

	ConditionsIgnored Bug = "List ignores the conditions"           // The list is read as a whole, and its reader picks.
	HeldForIgnored    Bug = "List ignores HeldFor"                  // The index has all that is held.
	PlacesWait        Bug = "every place counts as a waiter"        // SELECT count(*) FROM places.
	BlocksWhileThere  Bug = "a place is said to block its PlaceTTL" // Left is shown, not what is left of the Grace.

	PermitsMix     Bug = "leases with other permits are counted like those of the claim" // count(*) < permits.
	WeightIgnored  Bug = "every lease counts as one permit"                              // count(*) instead of sum(weight).
	LightOvertakes Bug = "a claim that fits overtakes a waiter that does not"            // Only a claim without a free permit looks at the queue.
	HeavyStarves   Bug = "waiters that fit are served before one that does not"          // All waiters that fit are served.
	GrantStrands   Bug = "a grant does not serve the waiter behind it"                   // Only a settlement looks at the queue.

	FromIsNothing      Bug = "a claim from a place has no number"                        // The claim is inserted with the next number, always.
	FromBeforeOwn      Bug = "a waiter that claims from a place leaves its own"          // The place that the claim names comes first.
	TwoAtANumber       Bug = "a lease is granted at a number that has one"               // The lease does not know its number.
	LeasedPlaceBlocks  Bug = "a place blocks while its lease is live"                    // The front is the lowest number there is.
	PlaceHidesWaiter   Bug = "a waiter at a reserved place is not served"                // The lowest row is reserved, so no waiter is there.
	CleanEndKeepsPlace Bug = "a clean end leaves the place"                              // DELETE FROM leases WHERE token = ?.
	AbandonEndsPlace   Bug = "an abandoned lease ends its place"                         // DELETE FROM places WHERE number = ?, at every end.
	DeletedSleepOn     Bug = "a waiter whose place is deleted is not woken"              // The rows are deleted in one statement, which returns nothing.
	GivenUpTakesAll    Bug = "giving a reserved place up ends the waiters at its number" // A place is given up by its number.

	GraceStartsAtReserve Bug = "reserving a place starts the count of graces"           // All modes but one share the statement that refuses.
	GraceStartsAtLook    Bug = "a look starts the count of graces"                      // A Look is a Try that takes nothing.
	GraceStartsAtWaiter  Bug = "a claim behind a waiter starts the count of graces"     // A place is a place.
	GraceStartsAtLeased  Bug = "a claim from a leased place starts the count of graces" // Held is Held.
	GraceWhileHeld       Bug = "a Grace is counted while there is no room"              // The place is first, so it blocks.
	GraceRounded         Bug = "a Grace of less than a millisecond is none"             // It is kept in milliseconds.
	GraceNotSetAnew      Bug = "reserving again does not start the count anew"          // ON CONFLICT DO UPDATE SET expires.
	GraceForEach         Bug = "each dead place costs its Grace"                        // Each place has its own count.
	GraceOutlastsGrant   Bug = "a grant does not start the count of graces anew"        // The mark is cleared when the queue is empty.
	GraceOutlastsQueue   Bug = "the count of graces continues when there is no place"   // It is a column of the key.
	ClaimClearsGrace     Bug = "a claim without a Grace takes the place's away"         // grace = excluded.grace.
	GraceSetTooEarly     Bug = "a claim that is not granted sets the Grace"             // It is written before the turn is known.
	PushSetsNoGrace      Bug = "a pushed grant does not set the Grace"                  // The Grace is written only by a claim that is granted.
	LeftOfPlaces         Bug = "Left is the time until a place ends"                    // Left is until something changes.

	KeepWakesOne         Bug = "a record wakes only the waiter in front"                                // The waiters are served, and that is all.
	StoppedIsWoken       Bug = "a listener is called after it was stopped"                              // The subscription is kept.
	PushedForEver        Bug = "a pushed grant lasts its TTL"                                           // The lease that is made for a waiter is the one that it asked for.
	PushedBriefly        Bug = "a pushed grant expires before PushedTTL"                                // The time counts from when the key was freed, and the message waits.
	PushedPastItsTTL     Bug = "a pushed grant outlasts its TTL"                                        // now + PushedTTL, always.
	UnreachableLeaves    Bug = "a skipped waiter loses its place"                                       // A waiter that cannot be reached counts as dead.
	AtMostOncePushed     Bug = "a grant is pushed to a claim with AtMostOnce"                           // The message has no flag for it.
	PushedAfterAbandoned Bug = "a grant after an abandoned lease is pushed as a first attempt"          // The message has no room for the attempt and the progress.
	MismatchPushed       Bug = "a grant is pushed to a claim whose fingerprint differs from a holder's" // Only what was abandoned is compared.
	AnsweredPushed       Bug = "a grant is pushed to a claim that a record answers"                     // Only a claim looks at the record.
	HeldFenceOfClaims    Bug = "a held answer's fence leaves out pushed grants"                         // The fence of the answers, and not of the grants.
	RelayedIsSkipped     Bug = "a waiter whose server ended is overtaken"                               // A process that does not listen is dead, and so are its waiters.
	RelayedIsForgotten   Bug = "a waiter whose server ended loses its number to a grant"                // A place ends with its grant.
	RelayedIsAwaited     Bug = "a waiter whose server ended is woken, and keeps the others away"        // The store wakes a waiter to which it pushes nothing.
	KeptBlocks           Bug = "a kept number keeps others from the key"                                // It is a place like others.
	KeptIsListed         Bug = "a kept number is listed as a waiter"                                    // SELECT count(*) FROM places.
	KeptIsSettled        Bug = "a kept number counts as a place that can be given up"                   // A settlement without a lease gives the place up.
	HeldFenceFromCount   Bug = "a held answer's fence falls when the data is lost"                      // The mark is read from the data that was lost.
)
