package model

// Bug is a mistake that the model can be told to make.
type Bug string

// The mistakes. The comment says what code makes them.
const (
	None Bug = ""

	// DEL key, without comparing the value with the token.
	SettleAnyToken Bug = "settle without comparing the token"
	// A queueing loser that cleans up deletes the lease it never got.
	LoserFrees Bug = "a loser frees the winner's lock"
	// fence = now, two grants within a microsecond.
	FenceReused Bug = "fence not rising"
	// INCR fence, in the database that loses its data.
	FenceCounter Bug = "fence from a bare counter"
	// UPDATE … SET expires WHERE token = ?, without AND expires > now.
	RenewExpired Bug = "renewal after expiry"
	// UPDATE … SET record WHERE key = ?.
	LateRecord Bug = "record overwritten by a late holder"
	// A late holder settles by token, though its lease has run out unnoticed.
	SettleExpired Bug = "settlement after expiry"
	// The free key goes to whoever asks first, not to who has waited longest.
	Barging Bug = "barging"
	// New waiters are put before old ones.
	LastFirst Bug = "last come, first served"
	// Settle frees the key and grants nobody.
	NoHandOver Bug = "no hand-over in the step of the settlement"
	// The waiter's entry is dropped when the key is handed over elsewhere.
	WaiterForgotten Bug = "a waiter is forgotten"
	// Nobody publishes.
	NoWakeUp Bug = "no wake-up"
	// VARCHAR(255).
	KeyTruncated Bug = "key truncated"
	// A case-insensitive collation.
	KeyFolded Bug = "key folded in case"
	// PAD SPACE.
	KeyTrimmed Bug = "trailing spaces ignored"
	// A C string.
	KeyEndsAtNUL Bug = "key ends at its first NUL"
	// namespace + "/" + name.
	NamespacesMerged Bug = "namespaces merged"
	// expires = the client's now + TTL.
	ClientClock Bug = "the client's clock trusted"
	// SET NX without looking whose value it is.
	ClaimNotIdempotent Bug = "claim not idempotent"
	// A claim that is sent again leaves the lease as long as it was.
	ClaimKeepsTTL Bug = "a claim again does not extend the lease"
	// No EXPIRE.
	NeverExpires Bug = "a lease never runs out"
	// Seconds, rounded down.
	ExpiresEarly Bug = "a lease runs out early"
	// The fingerprint is stored and never compared.
	MismatchIgnored Bug = "fingerprint ignored"
	// A different request ends the first one's lease.
	MismatchHarms Bug = "a mismatch ends the first lease"
	// <= instead of <.
	PermitsOffByOne Bug = "permits off by one"
	// Everybody brings a number of permits of their own.
	PermitsUnagreed Bug = "permits not agreed upon"
	// Two statements without a transaction: first the release, then the record.
	TornRecord Bug = "record written after the lease ended"
	// The record is cut to the size of the column.
	RecordCut Bug = "record cut to 64 KiB"
	// No expiry on the record.
	RecordStays Bug = "a record outlives its retention"
	// The answer is the record, however old.
	MaxAgeIgnored Bug = "MaxAge ignored"
	// A lock's release deletes everything under the key.
	LockHarmsRecord Bug = "a lock deletes the record"
	// A second Keep finds no lease and reports a loss.
	KeepNotIdempotent Bug = "Keep not idempotent"
	// A granted waiter that is gone keeps the key.
	OfferNeverLapses Bug = "an offer never lapses"
	// An offer nobody took counts as an abandoned attempt.
	OfferAbandons Bug = "a lapsed offer counts as abandoned"
	// The place of a waiter that is gone stays.
	PlaceStays Bug = "a dead place is never skipped"
	// A reserved place is only a number.
	ReservedIgnored Bug = "a reserved place blocks nobody"
	// A reserved place is granted like any other.
	ReservedGranted Bug = "a reserved place is granted unasked"
	// The flag is ignored.
	TakeOver Bug = "AtMostOnce treated as takeover"
	// An expired lease is as good as a settled one.
	AbandonedUnreported Bug = "abandonment not reported"
	// The count survives a clean end.
	AttemptsNotReset Bug = "attempts not reset"
	// What the last holder saved goes to the next even after a clean end.
	ProgressLeaks Bug = "progress handed on after a clean end"
	// It is not kept.
	ProgressDropped Bug = "progress dropped"
	// The column is cleared with each grant.
	ProgressStops Bug = "progress not passed on by a holder that saves nothing"
	// The answer is a pointer into the caller's slice.
	KeepsSlices Bug = "the caller's slices kept"
	// A batch is one transaction: one bad element fails them all.
	BatchFails Bug = "one bad element fails the batch"
	// INSERT … ON CONFLICT over the batch, one row for each key.
	BatchMerges Bug = "one answer for each key of a batch"
	// A look takes a place.
	LookJoins Bug = "a look joins the queue"
	// Resolve takes any ID.
	ResolveAny Bug = "Resolve without comparing the ID"
	// The sweep deletes what it finds without looking at the time.
	PruneLive Bug = "Prune removes what is alive"
	// Evict leaves the queue as it is.
	EvictStrands Bug = "Evict grants nobody"
	// Its holder's lease is deleted as if nothing had been known.
	EvictAbandons Bug = "Evict counts as abandonment"
	// DELETE FROM keys WHERE key = ?.
	ForgetEvicts Bug = "Forget ends live leases"
	// The answers come in the order of the sorted keys.
	BatchSorted Bug = "answers in another order than the claims"
	// A waiter that asks again is inserted again.
	AskingMovesBack Bug = "asking again loses the place"
	// ON CONFLICT DO NOTHING.
	PlaceNotProlonged Bug = "asking again does not prolong the place"
	// GREATEST(expires, now + TTL).
	RenewOnlyExtends Bug = "a renewal cannot shorten a lease"
	// The row is still there, and its token is the same.
	DeadLeaseReclaimed Bug = "a dead lease claimed again by its token"
	// A waiter that gives up its turn settles like a holder.
	TurnCleans Bug = "a turn given up forgets the abandonment"
	// The number is written once.
	AgreementStays Bug = "the agreement on permits outlasts the key's use"
	// Unknown outcomes are swept with the records.
	UnknownForgotten Bug = "an unknown outcome is forgotten in time"
	// The sweep takes whatever has run out.
	AbandonedForgotten Bug = "an abandoned lease is forgotten at once"
	// Only a settlement looks at the queue.
	RedeemStrands Bug = "redeeming a place grants nobody behind it"
	// The fingerprint is compared last.
	MismatchJoins Bug = "a mismatch takes a place"
	// A waiter that a record answers stays in the queue.
	KeepLeavesWaiters Bug = "waiters answered by a record keep their places"

	// The place's token is the lease's.
	RedeemTwice Bug = "two that redeem one place get one lease"
	// DELETE FROM places, when it is redeemed.
	PlaceLost Bug = "a redeemed place is lost when its lease runs out"
	// INSERT INTO places, when the lease has run out.
	PlaceReturnsLast Bug = "a place whose lease ran out stands again at the end"
	// UPDATE … SET taken_by = NULL.
	PlaceKeepsItsEnd Bug = "a place that stands again has the end that it had before"
	// Only expiry and abandonment look for a place, and settlement does not.
	ReleaseLeavesPlace Bug = "a released lease leaves its place standing"
	// The place of the claim is the first in the queue, taken or not.
	TakenPlaceBlocks Bug = "a taken place is in the way"
	// Its token is not in the queue.
	TakenPlaceJoins Bug = "a taken place's token joins again"
	// A settlement finds the lease by its place.
	TakenPlaceEnds Bug = "settling a taken place ends its lease"
	// The claim's token has no place.
	AnsweredPlaceStands Bug = "a redeemer that a record answers leaves its place standing"
	// A place that is not granted needs no word.
	ReservedNotWoken Bug = "nobody tells a reserved place that its turn has come"
	// The column is there, and no statement reads it.
	HoldIgnored Bug = "a place is in the way until it runs out, whatever its Hold"
	// expires = LEAST(place, hold).
	HoldFromTheReservation Bug = "a Hold is counted from the reservation"
	// The step that frees the key sets the end of the place that is next.
	HoldFromTheTurn Bug = "a Hold is counted from when the turn has come"
	// All modes but one share the statement that refuses.
	HoldStartsAtReserve Bug = "reserving a place behind starts a Hold"
	// A Look is a Try that takes nothing.
	HoldStartsAtLook Bug = "a look starts a Hold"
	// Who queues is written elsewhere.
	HoldStartsAtTryAlone Bug = "queueing starts no Hold"
	// Who merely tries writes nothing.
	HoldStartsAtQueueAlone Bug = "trying starts no Hold"
	// Who has a reserved place is answered elsewhere.
	HoldStartsAtStrangersAlone Bug = "a claim from a place behind starts no Hold"
	// Held is Held.
	HoldStartsAtTaken Bug = "a claim from a taken place starts another place's Hold"
	// The place is first, so it is in the way.
	HoldWhileHeld Bug = "a Hold is counted while others hold the key"
	// free = NOT EXISTS (SELECT FROM leases).
	HoldNeedsNoHolder Bug = "a Hold is not counted while anybody holds the key, though permits are free"
	// UPDATE places SET expires = … WHERE key = ?.
	HoldOfAll Bug = "all places' Holds are counted at once"
	// expires = now + hold, with each refusal.
	HoldRestarts Bug = "each refusal counts a Hold anew"
	// expires = now + hold, without LEAST.
	HoldOutlastsPlace Bug = "a Hold outlasts its place"
	// It is kept in milliseconds.
	HoldRounded Bug = "a Hold of less than a millisecond is none"
	// expires = LEAST(expires, now + place).
	HoldOutlastsProlonging Bug = "a prolonged place still ends with its Hold"
	// The mark that it is counted stays.
	HoldOnceProlonged Bug = "a prolonged place's Hold is never counted again"
	// ON CONFLICT DO UPDATE SET expires.
	HoldNotSetAnew Bug = "prolonging a place leaves its Hold as it was"
	// Every claim that prolongs writes all columns.
	HoldSetByTry Bug = "a Try that prolongs a place sets its Hold"
	// What the lease remembers of the place is the end that it had.
	HoldOutlastsTheLease Bug = "a place that stands again ends with the Hold that it had"
	// The mark is taken along by the lease, and comes back.
	HoldOnceTaken Bug = "a place that stands again has no Hold"
	// The lease has no column for it.
	RedeemersHoldIgnored Bug = "the Hold of a redeemer is ignored"
	// hold = excluded.hold.
	RedeemersHoldAlways Bug = "a redeemer without a Hold takes the place's away"
	// It is written before it is seen whose turn it is.
	RedeemersHoldTooEarly Bug = "a redeemer that is not granted sets the Hold"
	// The answer is made before the place is marked.
	HoldToldLate Bug = "the refusal that starts a Hold has the Left from before"
	// Left is read from another column than the one that ends the place.
	HoldNotTold Bug = "Left knows nothing of a Hold"

	// The field is new.
	IdleNotTold Bug = "Idle is never set"
	// first.reserved
	IdleWhileHeld Bug = "a key is said to lie idle while others hold it"
	// free = NOT EXISTS (SELECT FROM leases).
	IdleNeedsNoHolder Bug = "a key with a free permit is not said to lie idle while anybody holds it"
	// It is worked out before it is known for whom.
	IdleForTheTaken Bug = "a claim from a taken place is told that the key lies idle"
	// The answer is made from the lease that was found, and not from all.
	LeftOfTheTaker Bug = "a claim from a taken place is told of its lease's end alone"
	// The place was redeemed, if only for a while.
	IdleOnce Bug = "a key is not said to lie idle when a place stands again"

	// The message has a counter of its own.
	ToldFenceOther Bug = "a told grant has another fence than its lease"
	// The lease that is made for a waiter is the one that it asked for.
	ToldForEver Bug = "a told grant lasts as long as was asked for"
	// The turn is counted from when the key was freed, and the message waits.
	ToldBriefly Bug = "a told grant runs out before its turn is over"
	// Nobody had confirmed it, so it is treated as an offer.
	ToldLapseForgotten Bug = "a told grant that runs out was not abandoned"
	// A message without a lease behind it.
	ToldOnly Bug = "a grant is told and not made"
	// The waiter is told, and is still on offer in the database.
	ToldWithoutLease Bug = "a told grant has to be confirmed"
	// The row is made without the waiter's columns.
	ToldWithoutFingerprint Bug = "a told grant has no fingerprint"
	// The channel is the key's and not the process's.
	ToldToAll Bug = "a grant is told to all who wait"
	// Any process can take a grant.
	ToldToAnybody Bug = "what listens for wake-ups is granted as if it listened for grants"
	// The message has no flag for it.
	AtMostOnceTold Bug = "a grant is told to one that must not run twice"
	// The message has no room for the attempt and the progress.
	HeirTold Bug = "who comes after an abandoned lease is told a first attempt"
	// Only what was abandoned is compared.
	ClashTold Bug = "a grant is told to one that does something else than another holder"
	// A reserved place is told as any other.
	ReservedTold Bug = "a reserved place is told a grant"
	// The subscription is kept.
	StoppedIsTold Bug = "a grant is told after the listener stopped"
	// Held has no fence.
	HeldWithoutFence Bug = "a held answer has no fence"
	// The fence of the answers, and not of the grants.
	HeldFenceOfClaims Bug = "a held answer's fence leaves out what was told"
	// The mark is read from the data that was lost.
	HeldFenceFromCount Bug = "a held answer's fence falls when the data is lost"
	// The next fence, and some to spare.
	HeldFenceAhead Bug = "a held answer's fence is above the next grant's"

	// Only places and leases are settled.
	GivenUpRedeemerTold Bug = "a redeemer that gave up is granted unasked"
	// ON CONFLICT DO NOTHING.
	FirstRedeemerWaits Bug = "the first of a place's redeemers is granted unasked, and not the last"
	// Its own token is no redeemer.
	CalledBackIsTold Bug = "a redeemer is granted unasked after the place's own token has claimed"
	// The place stands, and so does what it says of the redeemer.
	RedeemerWaitsOn Bug = "a redeemer's wait never ends"
	// COALESCE(place, …).
	RedeemerUnasked Bug = "a redeemer that does not wait is granted unasked"
	// The lease is a waiter's, and a waiter has no place but its own.
	ToldRedeemerLosesPlace Bug = "the place of a redeemer that was granted unasked is lost when its lease ends"
	// What the place says of it is written by claims and settlements alone.
	ToldRedeemerWaitsOn Bug = "a redeemer that was granted unasked still waits when its lease is undone"
	// Who redeems without asking has no claim to read it from.
	ToldRedeemersHoldIgnored Bug = "the Hold of a redeemer that was granted unasked is ignored"
	// Its own place is looked for when it asks.
	ToldRedeemerKeepsPlace Bug = "a redeemer that was granted unasked keeps its own place"
	// Waiters whose answer is there were woken when it came.
	AnsweredRedeemerTold Bug = "a redeemer that a record answers is granted unasked"
	// One variable for all leases of a loop, of which each sets what it has.
	WaiterTakesPlace Bug = "a waiter that is granted together with a redeemer ends that one's place"
	// What is told is the place's token, as ever.
	RedeemerToldByPlace Bug = "a redeemer's grant is told by the place's token"

	// Fingerprints are compared before it is seen whose offer it is.
	OwnTurnMismatch Bug = "a token's own turn counts as somebody else's"

	// Undo is Abandon.
	UndoAbandons Bug = "an undone lease counts as abandoned"
	// Undo is Release.
	UndoCleans Bug = "an undone lease forgets the abandonment before it"
	// The claim that is undone has deleted what it took up.
	UndoForgetsProgress Bug = "an undone lease forgets the progress before it"
)

// Bugs lists all mistakes.
var Bugs = []Bug{
	SettleAnyToken, LoserFrees, FenceReused, FenceCounter, RenewExpired, LateRecord, SettleExpired,
	Barging, LastFirst, NoHandOver, WaiterForgotten, NoWakeUp,
	KeyTruncated, KeyFolded, KeyTrimmed, KeyEndsAtNUL, NamespacesMerged, ClientClock,
	ClaimNotIdempotent, ClaimKeepsTTL, NeverExpires, ExpiresEarly, MismatchIgnored, MismatchHarms,
	PermitsOffByOne, PermitsUnagreed, TornRecord, RecordCut, RecordStays, MaxAgeIgnored, LockHarmsRecord,
	KeepNotIdempotent, OfferNeverLapses, OfferAbandons, PlaceStays, ReservedIgnored, ReservedGranted,
	TakeOver, AbandonedUnreported, AttemptsNotReset, ProgressLeaks, ProgressDropped, KeepsSlices,
	BatchFails, BatchMerges, LookJoins, ResolveAny, PruneLive, EvictStrands, KeepLeavesWaiters,
	EvictAbandons, ForgetEvicts, BatchSorted, AskingMovesBack, PlaceNotProlonged, RenewOnlyExtends,
	DeadLeaseReclaimed, TurnCleans, AgreementStays, UnknownForgotten, AbandonedForgotten, MismatchJoins,
	RedeemStrands, ProgressStops,
	RedeemTwice, PlaceLost, PlaceReturnsLast, PlaceKeepsItsEnd, ReleaseLeavesPlace, TakenPlaceBlocks,
	TakenPlaceJoins, TakenPlaceEnds, AnsweredPlaceStands, ReservedNotWoken,
	OwnTurnMismatch, UndoAbandons, UndoCleans, UndoForgetsProgress,
	ToldFenceOther, ToldForEver, ToldBriefly, ToldLapseForgotten, ToldOnly, ToldWithoutLease,
	ToldWithoutFingerprint, ToldToAll, ToldToAnybody, AtMostOnceTold, HeirTold, ClashTold, ReservedTold,
	StoppedIsTold, HeldWithoutFence, HeldFenceOfClaims, HeldFenceFromCount, HeldFenceAhead,
	GivenUpRedeemerTold, FirstRedeemerWaits, CalledBackIsTold, RedeemerWaitsOn, RedeemerUnasked,
	ToldRedeemerLosesPlace, ToldRedeemerWaitsOn, ToldRedeemersHoldIgnored, ToldRedeemerKeepsPlace, AnsweredRedeemerTold, WaiterTakesPlace, RedeemerToldByPlace,
	HoldIgnored, HoldFromTheReservation, HoldFromTheTurn, HoldStartsAtReserve, HoldStartsAtLook,
	HoldStartsAtTryAlone, HoldStartsAtQueueAlone, HoldStartsAtStrangersAlone, HoldStartsAtTaken,
	HoldWhileHeld, HoldNeedsNoHolder, HoldOfAll, HoldRestarts, HoldOutlastsPlace, HoldRounded, HoldOutlastsProlonging,
	HoldOnceProlonged, HoldNotSetAnew, HoldSetByTry, HoldOutlastsTheLease, HoldOnceTaken,
	RedeemersHoldIgnored, RedeemersHoldAlways, RedeemersHoldTooEarly, HoldToldLate, HoldNotTold,
	IdleNotTold, IdleWhileHeld, IdleNeedsNoHolder, IdleForTheTaken, IdleOnce, LeftOfTheTaker,
}
