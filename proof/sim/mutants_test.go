package sim_test

import "github.com/dibs-go/dibs"

// mutant is one way to break what a store promises, or what a client does.
type mutant struct {
	// Name names it, for programs.
	Name string
	// About says what breaks, and what code would make the mistake.
	About string
	// Client says that the client is broken, which sees its store through Wrap. Otherwise the
	// store is broken, for all its clients.
	Client bool
	// Wrap returns the store, broken. It is a store.Notifier and a store.Batcher, and a
	// store.Inspector if the store that it is given is one. What a mutant remembers it
	// remembers in its process.
	Wrap func(dibs.Store) dibs.Store
}

// mutants are all of them.
var mutants = []mutant{
	{
		Name: "no-undo", Client: true,
		About: "a claim whose outcome is unknown is not undone, and a waiter that stops waiting does not give its place back",
		Wrap:  by(noUndo),
	},
	{
		Name: "no-trust", Client: true,
		About: "a holder never learns that its lease is over: every renewal counts as answered, and the section continues",
		Wrap:  by(noTrust),
	},
	{
		Name: "trust-unsettled", Client: true,
		About: "a holder continues after a settlement that was not answered: every error but ErrLost leaves the lease as it was",
		Wrap:  by(trustUnsettled),
	},
	{
		Name:  "renewal-revives",
		About: "a renewal after the end brings a lease back: UPDATE … SET expires WHERE token = ?, without AND expires > now",
		Wrap:  by(renewalRevives),
	},
	{
		Name:  "settle-any-token",
		About: "a token that does not hold the key ends the holder's lease: DEL key, without comparing the token",
		Wrap:  by(settleAnyToken),
	},
	{
		Name:  "stale-record",
		About: "a token that has lost its lease still writes a record: UPDATE … SET record WHERE key = ?",
		Wrap:  by(staleRecord),
	},
	{
		Name:  "barging",
		About: "a free key goes to the first caller that asks: waiters have no places",
		Wrap:  by(barging),
	},
	{
		Name:  "stranded",
		About: "a waiter is never granted: the store does not look at the queue again",
		Wrap:  by(stranded),
	},
	{
		Name:  "half-record",
		About: "a record is read while it is being written, and answers with its first half",
		Wrap:  by(halfRecord),
	},
	{
		Name:  "old-record",
		About: "a record answers after its retention is over: a cache in front of the store that forgets nothing",
		Wrap:  by(oldRecord),
	},
	{
		Name:  "unwritten-record",
		About: "a record answers that was never written: it is in the cache before the store has taken it",
		Wrap:  by(unwrittenRecord),
	},
	{
		Name:  "other-bytes",
		About: "a replay has other bytes than the first answer: it is decoded and encoded again on the way",
		Wrap:  by(otherBytes),
	},
	{
		Name:  "answer-lost",
		About: "what was done is committed and its answer is not: the record is dropped, and said to be kept",
		Wrap:  by(answerLost),
	},
	{
		Name:  "fence-repeats",
		About: "two grants have one fence: the clock that it is made of ticks too slowly",
		Wrap:  by(fenceRepeats),
	},
	{
		Name:  "fence-falls",
		About: "each grant has a lower fence than the one before",
		Wrap:  by(fenceFalls),
	},
	{
		Name:  "permit-too-many",
		About: "one more than the permits hold the key at once: <= for <",
		Wrap:  by(permitTooMany),
	},
	{
		Name:  "weight-ignored",
		About: "a lease takes one permit, however many it asked for: count(*) for sum(weight)",
		Wrap:  by(weightIgnored),
	},
	{
		Name:  "permits-stay",
		About: "a key has the number of permits that it was asked for first, whatever others see",
		Wrap:  by(permitsStay),
	},
	{
		Name:  "undo-counts",
		About: "a lease that is undone counts as abandoned: one way out for all that did not end well",
		Wrap:  by(undoCounts),
	},
	{
		Name:  "lease-short",
		About: "a lease runs out after half of its time",
		Wrap:  by(leaseShort),
	},
	{
		Name:  "session-ends",
		About: "a lease ends a moment after its holder's session, as the server sees it: an advisory lock, an ephemeral node",
		Wrap:  by(sessionEndsLease),
	},
	{
		Name:  "claim-anew",
		About: "a claim that is sent twice is granted twice: the token's lease is ended and made anew",
		Wrap:  by(claimAnew),
	},
	{
		Name:  "place-lost",
		About: "a reserved place is gone when a lease from it ends, even if that was abandoned or undone: DELETE FROM places, when it is granted",
		Wrap:  by(placeLost),
	},
	{
		Name:  "mismatch-ignored",
		About: "the fingerprint is not compared",
		Wrap:  by(mismatchIgnored),
	},
}
