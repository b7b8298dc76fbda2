package storetest

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/store"
)

// process is one store, and what a process does with it one call at a time.
// Its methods fail the trial when a call as a whole fails.
type process struct {
	t     *Trial
	store store.Store
}

// claims makes one call of Claim.
func (p *process) claims(claims ...store.Claim) []store.Answer {
	p.t.Helper()
	answers := make([]store.Answer, len(claims))
	p.call("Claim", func(ctx context.Context) error { return p.store.Claim(ctx, claims, answers) })
	return answers
}

// renewals makes one call of Renew.
func (p *process) renewals(renewals ...store.Renewal) []error {
	p.t.Helper()
	errs := make([]error, len(renewals))
	p.call("Renew", func(ctx context.Context) error { return p.store.Renew(ctx, renewals, errs) })
	return errs
}

// settlements makes one call of Settle.
func (p *process) settlements(settlements ...store.Settlement) []error {
	p.t.Helper()
	errs := make([]error, len(settlements))
	p.call("Settle", func(ctx context.Context) error { return p.store.Settle(ctx, settlements, errs) })
	return errs
}

// call makes a call, and fails the trial if it fails as a whole.
func (p *process) call(name string, call func(context.Context) error) {
	p.t.Helper()
	if err := call(p.t.Context()); err != nil {
		p.t.Fatalf("%s: the call failed: %v", name, err)
	}
}

// claim claims one key.
func (p *process) claim(c store.Claim) store.Answer {
	p.t.Helper()
	return p.claims(c)[0]
}

// try claims the lock of one key, with edits to the claim.
func (p *process) try(k store.Key, token store.Token, edits ...edit) store.Answer {
	p.t.Helper()
	return p.claim(lock(k, token, edits...))
}

// queue is try with a place in the queue.
func (p *process) queue(k store.Key, token store.Token, edits ...edit) store.Answer {
	p.t.Helper()
	c := lock(k, token, edits...)
	c.Mode = store.Queue
	return p.claim(c)
}

// reserve reserves a place in the queue.
func (p *process) reserve(k store.Key, token store.Token, edits ...edit) store.Answer {
	p.t.Helper()
	c := lock(k, token, edits...)
	c.Mode = store.Reserve
	return p.claim(c)
}

// look asks what a stranger would find.
func (p *process) look(k store.Key, edits ...edit) store.Answer {
	p.t.Helper()
	c := lock(k, store.NewToken(), edits...)
	c.Mode = store.Look
	return p.claim(c)
}

// renew renews one lease.
func (p *process) renew(k store.Key, token store.Token, ttl time.Duration) error {
	p.t.Helper()
	return p.renewals(store.Renewal{Key: k, Token: token, TTL: ttl})[0]
}

// save renews one lease and saves progress with it.
func (p *process) save(k store.Key, token store.Token, ttl time.Duration, progress string) error {
	p.t.Helper()
	return p.renewals(store.Renewal{Key: k, Token: token, TTL: ttl, Progress: []byte(progress)})[0]
}

// release ends one lease, leaving nothing behind.
func (p *process) release(k store.Key, token store.Token) error {
	p.t.Helper()
	return p.settlements(store.Settlement{Key: k, Token: token, Outcome: store.Release})[0]
}

// keep ends one lease, leaving a record behind for long.
func (p *process) keep(k store.Key, token store.Token, data string) error {
	p.t.Helper()
	return p.keepFor(k, token, data, long)
}

// keepFor ends one lease, leaving a record behind.
func (p *process) keepFor(k store.Key, token store.Token, data string, retention time.Duration) error {
	p.t.Helper()
	return p.settlements(store.Settlement{
		Key: k, Token: token, Outcome: store.Keep, Data: []byte(data), Retention: retention,
	})[0]
}

// abandon ends one lease as if it had expired.
func (p *process) abandon(k store.Key, token store.Token) error {
	p.t.Helper()
	return p.settlements(store.Settlement{Key: k, Token: token, Outcome: store.Abandon})[0]
}

// undo ends one lease as if it had not been granted.
func (p *process) undo(k store.Key, token store.Token) error {
	p.t.Helper()
	return p.settlements(store.Settlement{Key: k, Token: token, Outcome: store.Undo})[0]
}

// inspect returns the store's Inspector; properties that call it need it.
func (p *process) inspect() store.Inspector {
	p.t.Helper()
	in, ok := p.store.(store.Inspector)
	if !ok {
		p.t.Fatal("the store is not an Inspector")
	}
	return in
}

// edit changes a claim that lock has made.
type edit func(*store.Claim)

// lock returns a Try for a lock with one permit and a long lease.
func lock(k store.Key, token store.Token, edits ...edit) store.Claim {
	c := store.Claim{Key: k, Token: token, Mode: store.Try, TTL: long, PlaceTTL: long, Permits: 1, Weight: 1}
	for _, e := range edits {
		e(&c)
	}
	return c
}

// from makes the claim from a reserved place.
func from(place store.Token) edit { return func(c *store.Claim) { c.From = place } }

func ttl(d time.Duration) edit      { return func(c *store.Claim) { c.TTL = d } }
func placeTTL(d time.Duration) edit { return func(c *store.Claim) { c.PlaceTTL = d } }
func grace(d time.Duration) edit    { return func(c *store.Claim) { c.Grace = d } }
func permits(n int) edit            { return func(c *store.Claim) { c.Permits = n } }
func weight(n int) edit             { return func(c *store.Claim) { c.Weight = n } }
func asked(what string) edit        { return func(c *store.Claim) { c.Fingerprint = printOf(what) } }
func maxAge(d time.Duration) edit {
	return func(c *store.Claim) { c.MaxAge = d }
}
func owner(o store.Owner) edit { return func(c *store.Claim) { c.Owner = o } }

// answerable accepts every record: the claim of an idempotency key.
func answerable(c *store.Claim) { c.MaxAge = store.AnyAge }

// atMostOnce makes the outcome unknown if the lease is abandoned.
func atMostOnce(c *store.Claim) { c.AtMostOnce = true }

// tokens returns n new tokens.
func tokens(n int) []store.Token {
	ts := make([]store.Token, n)
	for i := range ts {
		ts[i] = store.NewToken()
	}
	return ts
}

func itoa(n int) string      { return strconv.Itoa(n) }
func quoted(s string) string { return strconv.Quote(s) }
func isLost(err error) bool  { return errors.Is(err, store.ErrLost) }
