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
	// The record is cut to the size of the column.
	RecordCut Bug = "record cut to 64 KiB"
	// The answer is the record, however old.
	MaxAgeIgnored Bug = "MaxAge ignored"
	// The answer is a pointer into the caller's slice.
	KeepsSlices Bug = "the caller's slices kept"
	// INSERT … ON CONFLICT over the batch, one row for each key.
	BatchMerges Bug = "one answer for each key of a batch"
	// The fingerprint is compared last.
	MismatchJoins Bug = "a mismatch takes a place"
	// Only a grant and a settlement delete a place.
	AnsweredKeepsPlace Bug = "a waiter that a record answers keeps its place"
	// Every answer deletes all that the claim names.
	AnsweredEndsFrom Bug = "a claim that a record answers ends the place that it is from"

	// The column is set with each abandonment.
	ProgressStops Bug = "progress not passed on by a holder that saves nothing"
	// The grant takes the abandoned row over.
	UndoForgetsAbandoned Bug = "an undone lease forgets what was abandoned before it"
	// Unknown outcomes are swept with the records.
	UnknownForgotten Bug = "an unknown outcome is forgotten in time"
	// The sweep takes whatever has run out.
	AbandonedForgotten Bug = "an abandoned lease is forgotten at once"

	// Resolve takes any ID.
	ResolveAny Bug = "Resolve without comparing the ID"
	// The sweep deletes what it finds without looking at the time.
	PruneLive Bug = "Prune removes what is alive"
	// Evict leaves the queue as it is.
	EvictStrands Bug = "Evict serves nobody"
	// DELETE FROM keys WHERE key = ?.
	ForgetEvicts Bug = "Forget ends live leases"

	// count(*) < permits.
	PermitsMix Bug = "leases with other permits are counted like those of the claim"
	// count(*) instead of sum(weight).
	WeightIgnored Bug = "every lease counts as one permit"
	// The queue is for those that find no permit.
	LightBarges Bug = "a claim that fits passes a waiter that does not"
	// All waiters that fit are served.
	HeavyStarves Bug = "waiters that fit are served before one that does not"
	// Only a settlement looks at the queue.
	GrantStrands Bug = "a grant serves nobody behind it"

	// The claim is inserted with the next number, always.
	FromIsNothing Bug = "a claim from a place has no number"
	// The place that the claim names comes first.
	FromBeforeOwn Bug = "a waiter that claims from a place leaves its own"
	// The lease does not know its number.
	TwoAtANumber Bug = "a lease is granted at a number that has one"
	// The front is the lowest number there is.
	LeasedPlaceBlocks Bug = "a place is in the way while its lease stands"
	// The lowest row is reserved, so nobody waits there.
	PlaceHidesWaiter Bug = "a waiter at a reserved place is not served"
	// DELETE FROM leases WHERE token = ?.
	CleanEndKeepsPlace Bug = "a clean end leaves the place"
	// DELETE FROM places WHERE number = ?, at every end.
	AbandonEndsPlace Bug = "an abandoned lease ends its place"
	// The rows are deleted in one statement, which returns nothing.
	DeletedSleepOn Bug = "a waiter whose place is deleted is not woken"
	// A place is given up by its number.
	GivenUpTakesAll Bug = "giving a reserved place up ends the waiters at its number"

	// All modes but one share the statement that refuses.
	HoldStartsAtReserve Bug = "reserving a place starts the count of Holds"
	// A Look is a Try that takes nothing.
	HoldStartsAtLook Bug = "a look starts the count of Holds"
	// Held is Held.
	HoldStartsAtLeased Bug = "a claim from a leased place starts the count of Holds"
	// The place is first, so it is in the way.
	HoldWhileHeld Bug = "a Hold is counted while there is no room"
	// It is kept in milliseconds.
	HoldRounded Bug = "a Hold of less than a millisecond is none"
	// ON CONFLICT DO UPDATE SET expires.
	HoldNotSetAnew Bug = "reserving again does not start the count anew"
	// Each place has its own count.
	HoldForEach Bug = "each dead place costs its Hold"
	// The mark is cleared when the queue is empty.
	HoldOutlastsGrant Bug = "a grant does not start the count of Holds anew"
	// hold = excluded.hold.
	ClaimClearsHold Bug = "a claim without a Hold takes the place's away"
	// It is written before it is seen whose turn it is.
	HoldSetTooEarly Bug = "a claim that is not granted sets the Hold"
	// Left is until something changes.
	LeftOfPlaces Bug = "Left is the time until a place ends"

	// The waiters are served, and that is all.
	KeepWakesOne Bug = "a record wakes only the waiter in front"
	// The subscription is kept.
	StoppedIsTold Bug = "a listener is called after it was stopped"
	// The lease that is made for a waiter is the one that it asked for.
	ToldForEver Bug = "a told grant lasts as long as was asked for"
	// The turn is counted from when the key was freed, and the message waits.
	ToldBriefly Bug = "a told grant runs out before its turn is over"
	// The message has no flag for it.
	AtMostOnceTold Bug = "a grant is told to one that must not run twice"
	// The message has no room for the attempt and the progress.
	HeirTold Bug = "a grant after an abandoned lease is told as a first attempt"
	// Only what was abandoned is compared.
	ClashTold Bug = "a grant is told to one that does something else than another holder"
	// The record is for those who ask.
	AnsweredTold Bug = "a grant is told to one that a record answers"
	// The fence of the answers, and not of the grants.
	HeldFenceOfClaims Bug = "a held answer's fence leaves out what was told"
	// The mark is read from the data that was lost.
	HeldFenceFromCount Bug = "a held answer's fence falls when the data is lost"
)

// Bugs lists all mistakes.
var Bugs = []Bug{
	KeyTruncated, KeyFolded, KeyTrimmed, KeyEndsAtNUL, ClaimKeepsTTL, RecordCut, MaxAgeIgnored,
	KeepsSlices, BatchMerges, MismatchJoins, AnsweredKeepsPlace, AnsweredEndsFrom,
	ProgressStops, UndoForgetsAbandoned, UnknownForgotten, AbandonedForgotten,
	ResolveAny, PruneLive, EvictStrands, ForgetEvicts,
	PermitsMix, WeightIgnored, LightBarges, HeavyStarves, GrantStrands,
	FromIsNothing, FromBeforeOwn, TwoAtANumber, LeasedPlaceBlocks, PlaceHidesWaiter,
	CleanEndKeepsPlace, AbandonEndsPlace, DeletedSleepOn, GivenUpTakesAll,
	HoldStartsAtReserve, HoldStartsAtLook, HoldStartsAtLeased, HoldWhileHeld, HoldRounded,
	HoldNotSetAnew, HoldForEach, HoldOutlastsGrant, ClaimClearsHold, HoldSetTooEarly, LeftOfPlaces,
	KeepWakesOne, StoppedIsTold, ToldForEver, ToldBriefly, AtMostOnceTold, HeirTold, ClashTold,
	AnsweredTold, HeldFenceOfClaims, HeldFenceFromCount,
}
