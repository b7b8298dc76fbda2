package sim_test

import (
	"context"
	"slices"
	"sync"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

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

// memory is what a mutant remembers, by key or token. It is small: a history is.
type memory[K comparable, V any] struct {
	mu sync.Mutex
	of map[K]V
}

func (m *memory[K, V]) set(k K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = map[K]V{}
	}
	m.of[k] = v
}

func (m *memory[K, V]) get(k K) (v V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok = m.of[k]
	return v, ok
}

func (m *memory[K, V]) drop(k K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, k)
}

// part makes a call with the elements that pick picks alone, and puts their answers
// where they belong.
func part[Q, A any](ctx context.Context, qs []Q, as []A, call func(context.Context, []Q, []A) error, pick func(int) bool) error {
	var which []int
	var some []Q
	for i := range qs {
		if pick(i) {
			which, some = append(which, i), append(some, qs[i])
		}
	}
	if len(some) == 0 {
		return nil
	}
	got := make([]A, len(some))
	if err := call(ctx, some, got); err != nil {
		return err
	}
	for j, i := range which {
		as[i] = got[j]
	}
	return nil
}

// asked returns hooks that change what is claimed, and what is answered.
func asked(s dibs.Store, change func(*store.Claim), answer func(store.Claim, *store.Answer)) hooks {
	return hooks{claim: func(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
		other := slices.Clone(claims)
		if change != nil {
			for i := range other {
				change(&other[i])
			}
		}
		if err := s.Claim(ctx, other, answers); err != nil {
			return err
		}
		if answer != nil {
			for i := range answers {
				answer(claims[i], &answers[i])
			}
		}
		return nil
	}}
}

// claimOne makes one claim; the zero Answer is that of a call that failed.
func claimOne(ctx context.Context, s dibs.Store, c store.Claim) store.Answer {
	answers := make([]store.Answer, 1)
	if err := s.Claim(ctx, []store.Claim{c}, answers); err != nil {
		return store.Answer{}
	}
	return answers[0]
}

// settleOne makes one settlement and reports whether it is done.
func settleOne(ctx context.Context, s dibs.Store, x store.Settlement) bool {
	errs := make([]error, 1)
	return s.Settle(ctx, []store.Settlement{x}, errs) == nil && errs[0] == nil
}

// broken is a store with other methods than its own.
type broken struct {
	dibs.Store // what is broken; called by the hooks
	hooks
}

// hooks take the place of a store's methods. Those that are nil leave them as they are.
type hooks struct {
	claim  func(context.Context, []store.Claim, []store.Answer) error
	renew  func(context.Context, []store.Renewal, []error) error
	settle func(context.Context, []store.Settlement, []error) error
	pushed func(store.Answer) store.Answer // of a pushed grant
}

// by returns the Wrap of a mutant whose hooks are made for each store.
func by(breaks func(dibs.Store) hooks) func(dibs.Store) dibs.Store {
	return func(s dibs.Store) dibs.Store {
		b := &broken{Store: s, hooks: breaks(s)}
		if i, ok := s.(store.Inspector); ok {
			return &struct {
				*broken
				store.Inspector
			}{b, i}
		}
		return b
	}
}

// Claim implements dibs.Store.
func (b *broken) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if b.claim == nil {
		return b.Store.Claim(ctx, claims, answers)
	}
	return b.claim(ctx, claims, answers)
}

// Renew implements dibs.Store.
func (b *broken) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if b.renew == nil {
		return b.Store.Renew(ctx, renewals, errs)
	}
	return b.renew(ctx, renewals, errs)
}

// Settle implements dibs.Store.
func (b *broken) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if b.settle == nil {
		return b.Store.Settle(ctx, settlements, errs)
	}
	return b.settle(ctx, settlements, errs)
}

// Batching implements store.Batcher; that of a store that says nothing is the default.
func (b *broken) Batching() store.Batching {
	if x, ok := b.Store.(store.Batcher); ok {
		return x.Batching()
	}
	return store.Batching{}
}

// Notify implements store.Notifier; a store that cannot wake wakes no waiter.
func (b *broken) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	n, ok := b.Store.(store.Notifier)
	if !ok {
		return func() {}
	}
	return n.Notify(func(t store.Token, a store.Answer) {
		if a.State == store.Granted && b.pushed != nil {
			a = b.pushed(a)
		}
		wake(t, a)
	})
}
