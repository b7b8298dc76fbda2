package model

// Bug is a mistake that the model can be told to make.
type Bug string

// The mistakes. The comment says what code makes them.
const (
	None Bug = ""

	// VARCHAR(255).
	KeyTruncated Bug = "key truncated"
	// A case-insensitive collation.
	KeyFolded Bug = "key folded in case"
	// PAD SPACE.
	KeyTrimmed Bug = "trailing spaces ignored"
	// A C string.
	KeyEndsAtNUL Bug = "key ends at its first NUL"
	// A claim that is sent again leaves the lease as long as it was.
	ClaimKeepsTTL Bug = "a claim again does not extend the lease"
	// Everybody brings a number of permits of their own.
	PermitsUnagreed Bug = "permits not agreed upon"
	// The record is cut to the size of the column.
	RecordCut Bug = "record cut to 64 KiB"
	// The answer is the record, however old.
	MaxAgeIgnored Bug = "MaxAge ignored"
	// The column is cleared with each grant.
	ProgressStops Bug = "progress not passed on by a holder that saves nothing"
	// The answer is a pointer into the caller's slice.
	KeepsSlices Bug = "the caller's slices kept"
	// INSERT … ON CONFLICT over the batch, one row for each key.
	BatchMerges Bug = "one answer for each key of a batch"
	// Resolve takes any ID.
	ResolveAny Bug = "Resolve without comparing the ID"
	// The sweep deletes what it finds without looking at the time.
	PruneLive Bug = "Prune removes what is alive"
	// Evict leaves the queue as it is.
	EvictStrands Bug = "Evict grants nobody"
	// DELETE FROM keys WHERE key = ?.
	ForgetEvicts Bug = "Forget ends live leases"
	// A waiter that gives up its turn settles like a holder.
	TurnCleans Bug = "a turn given up forgets the abandonment"
	// Unknown outcomes are swept with the records.
	UnknownForgotten Bug = "an unknown outcome is forgotten in time"
	// The sweep takes whatever has run out.
	AbandonedForgotten Bug = "an abandoned lease is forgotten at once"
	// Only a settlement looks at the queue.
	RedeemStrands Bug = "redeeming a place grants nobody behind it"
	// The fingerprint is compared last.
	MismatchJoins Bug = "a mismatch takes a place"

	// All modes but one share the statement that refuses.
	HoldStartsAtReserve Bug = "reserving a place behind starts a Hold"
	// A Look is a Try that takes nothing.
	HoldStartsAtLook Bug = "a look starts a Hold"
	// Held is Held.
	HoldStartsAtTaken Bug = "a claim from a taken place starts another place's Hold"
	// The place is first, so it is in the way.
	HoldWhileHeld Bug = "a Hold is counted while others hold the key"
	// expires = now + hold, without LEAST.
	HoldOutlastsPlace Bug = "a Hold outlasts its place"
	// It is kept in milliseconds.
	HoldRounded Bug = "a Hold of less than a millisecond is none"
	// ON CONFLICT DO UPDATE SET expires.
	HoldNotSetAnew Bug = "prolonging a place leaves its Hold as it was"
	// Every claim that prolongs writes all columns.
	HoldSetByTry Bug = "a Try that prolongs a place sets its Hold"
	// What the lease remembers of the place is the end that it had.
	HoldOutlastsTheLease Bug = "a place that stands again ends with the Hold that it had"
	// The mark is taken along by the lease, and comes back.
	HoldOnceTaken Bug = "a place that stands again has no Hold"
	// hold = excluded.hold.
	RedeemersHoldAlways Bug = "a redeemer without a Hold takes the place's away"
	// It is written before it is seen whose turn it is.
	RedeemersHoldTooEarly Bug = "a redeemer that is not granted sets the Hold"

	// first.reserved
	IdleWhileHeld Bug = "a key is said to lie idle while others hold it"
	// free = NOT EXISTS (SELECT FROM leases).
	IdleNeedsNoHolder Bug = "a key with a free permit is not said to lie idle while anybody holds it"
	// It is worked out before it is known for whom.
	IdleForTheTaken Bug = "a claim from a taken place is told that the key lies idle"
	// The answer is made from the lease that was found, and not from all.
	LeftOfTheTaker Bug = "a claim from a taken place is told of its lease's end alone"

	// The lease that is made for a waiter is the one that it asked for.
	ToldForEver Bug = "a told grant lasts as long as was asked for"
	// The turn is counted from when the key was freed, and the message waits.
	ToldBriefly Bug = "a told grant runs out before its turn is over"
	// The message has no flag for it.
	AtMostOnceTold Bug = "a grant is told to one that must not run twice"
	// The message has no room for the attempt and the progress.
	HeirTold Bug = "who comes after an abandoned lease is told a first attempt"
	// Only what was abandoned is compared.
	ClashTold Bug = "a grant is told to one that does something else than another holder"
	// A place is a place.
	ReservedTold Bug = "a grant is told to a reserved place"
	// The subscription is kept.
	StoppedIsTold Bug = "a grant is told after the listener stopped"
	// The fence of the answers, and not of the grants.
	HeldFenceOfClaims Bug = "a held answer's fence leaves out what was told"
	// The mark is read from the data that was lost.
	HeldFenceFromCount Bug = "a held answer's fence falls when the data is lost"

	// Fingerprints are compared before it is seen whose offer it is.
	OwnTurnMismatch Bug = "a token's own turn counts as somebody else's"

	// The claim that is undone has deleted what it took up.
	UndoForgetsProgress Bug = "an undone lease forgets the progress before it"
)

// Bugs lists all mistakes.
var Bugs = []Bug{
	KeyTruncated, KeyFolded, KeyTrimmed, KeyEndsAtNUL, ClaimKeepsTTL, PermitsUnagreed, RecordCut,
	MaxAgeIgnored, ProgressStops, KeepsSlices, BatchMerges, ResolveAny, PruneLive, EvictStrands,
	ForgetEvicts, TurnCleans, UnknownForgotten, AbandonedForgotten, RedeemStrands, MismatchJoins,
	HoldStartsAtReserve, HoldStartsAtLook, HoldStartsAtTaken, HoldWhileHeld, HoldOutlastsPlace,
	HoldRounded, HoldNotSetAnew, HoldSetByTry, HoldOutlastsTheLease, HoldOnceTaken,
	RedeemersHoldAlways, RedeemersHoldTooEarly, IdleWhileHeld, IdleNeedsNoHolder, IdleForTheTaken,
	LeftOfTheTaker, ToldForEver, ToldBriefly, AtMostOnceTold, HeirTold, ClashTold, ReservedTold,
	StoppedIsTold, HeldFenceOfClaims, HeldFenceFromCount, OwnTurnMismatch, UndoForgetsProgress,
}
