package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// factor is by how much the model may be wrong.
const factor = 1.25

// backend is a real store beside its model.
type backend struct {
	model Store
	// open opens the store as a process of its own does; it ends with the test.
	// It looks that often for what has ended, and never when that is negative.
	open func(t *testing.T, prune time.Duration) dibs.Store
	// used returns what the server has counted so far.
	used func(t *testing.T) counts
	// space returns how many bytes the server keeps, and grain is the least that it
	// takes more.
	space func(t *testing.T) float64
	grain float64
	calls int // how many kinds of calls were tried
	// noise is what the server does of its own, in the background.
	noise Cost
	// alongside is what polls of those who wait add to a call about a long queue.
	alongside map[string]float64
	// unit is how many bytes one of those has that the server counts as looked at.
	unit float64
	// connections returns how many connections the server has; nil where there is no
	// such thing.
	connections func(t *testing.T) int
	// quiet makes the log empty, where it is only counted while it is short; nil where it
	// need not be.
	quiet func(t *testing.T)
	// misses are the figures that were found not to be what the model says.
	misses []string
}

// counts are what a server counts by itself.
type counts struct {
	Cost
	// work is what the server did for it inside: commands of scripts, pages or rows that
	// were looked at.
	work float64
	// By which factor the model may be wrong about calls, bytes, log and notices; 0 where
	// they are not counted.
	calls, bytes, log, notices float64
}

// measure returns what f costs, without what it costs to look.
func (b *backend) measure(t *testing.T, f func()) counts {
	t.Helper()
	if b.quiet != nil {
		b.quiet(t)
	}
	first, second := b.used(t), b.used(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := 0; second.Log != first.Log && n < 100; n++ { // it clears away what came before
		<-tick.C
		first, second = second, b.used(t)
	}
	f()
	c := b.used(t)
	c.Cost = c.Plus(second.Times(-2), first.Cost)
	c.work += first.work - 2*second.work
	return c
}

// check notes a miss unless the model says what was counted, but for so little.
func (b *backend) check(t *testing.T, what string, got counts, want, slack Cost) {
	t.Helper()
	b.between(t, what, got, want, want, slack)
}

// between is check for what depends on how busy the machine is.
func (b *backend) between(t *testing.T, what string, got counts, least, most, slack Cost) {
	t.Helper()
	slack = slack.Plus(b.noise)
	for _, f := range []struct {
		name   string
		factor float64 // 0: not counted
		figure func(c Cost) float64
	}{
		{"calls", got.calls, func(c Cost) float64 { return c.Calls }},
		{"bytes in", got.bytes, func(c Cost) float64 { return c.In }},
		{"bytes out", got.bytes, func(c Cost) float64 { return c.Out }},
		{"bytes of log", got.log, func(c Cost) float64 { return c.Log }},
		{"notices", got.notices, func(c Cost) float64 { return c.Notices }},
	} {
		if f.factor > 0 {
			b.within(t, what+": "+f.name, f.factor, f.figure(got.Cost), f.figure(least), f.figure(most), f.figure(slack))
		}
	}
}

// within notes a miss unless a model is right within the factor.
func (b *backend) within(t *testing.T, what string, factor, got, least, most, slack float64) {
	t.Helper()
	t.Logf("%-44s %12.1f counted; modelled %12.1f … %.1f (%.2f)", what, got, least, most, got/most)
	if got > most*factor+slack || got < least/factor-slack {
		b.miss("%s: %.1f; the model says %.1f to %.1f", what, got, least, most)
	}
}

// miss notes that something is not what the model says.
func (b *backend) miss(format string, args ...any) {
	b.misses = append(b.misses, fmt.Sprintf(format, args...))
}

// shape is what the tests ask about. The owner is whatever claims say it is.
var shape = Shape{Key: 18, Owner: len(owner.String()), Data: 1000}

// large is with longer keys, and shorter records.
var large = Shape{Key: 200, Owner: shape.Owner, Data: 100}

var owner = dibs.Owner{Host: "host-0123456789", PID: 12345, Label: "scale"}

// keyName returns a name of as many bytes as shape says.
func keyName(name string, i int) string { return fmt.Sprintf("%-12s%06d", name, i) }

// batch is some leases, and how they are asked for.
type batch struct {
	claims   []dibs.Claim
	answers  []dibs.Answer
	renewals []dibs.Renewal
	settles  []dibs.Settlement
	errs     []error
}

// newBatch returns n claims of keys that begin with a name of their own.
func newBatch(name string, n int) *batch {
	b := &batch{
		claims: make([]dibs.Claim, n), answers: make([]dibs.Answer, n), renewals: make([]dibs.Renewal, n),
		settles: make([]dibs.Settlement, n), errs: make([]error, n),
	}
	for i := range b.claims {
		key := dibs.Key{Name: keyName(name, i)}
		token := dibs.NewToken()
		b.claims[i] = dibs.Claim{Key: key, Token: token, TTL: 30 * time.Second, Permits: 1, Owner: owner}
		b.renewals[i] = dibs.Renewal{Key: key, Token: token, TTL: 30 * time.Second}
		b.settles[i] = dibs.Settlement{Key: key, Token: token}
	}
	return b
}

// lengthen makes the keys as long as that.
func (b *batch) lengthen(s Shape) {
	for i := range b.claims {
		key := b.claims[i].Key
		key.Name += strings.Repeat("x", s.Key-len(key.Name))
		b.claims[i].Key, b.renewals[i].Key, b.settles[i].Key = key, key, key
	}
}

// claim claims all, and fails the test unless the answers are so.
func (b *batch) claim(t *testing.T, s dibs.Store, want dibs.State) {
	t.Helper()
	if err := s.Claim(t.Context(), b.claims, b.answers); err != nil {
		t.Fatal(err)
	}
	for i := range b.answers {
		if b.answers[i].Err != nil || b.answers[i].State != want {
			t.Fatalf("a claim was answered %+v; want state %d", b.answers[i], want)
		}
	}
}

// wait makes the claims ones that wait for others, or with Reserve reserve places.
func (b *batch) wait(key dibs.Key, mode dibs.Mode) {
	for i := range b.claims {
		b.claims[i].Key, b.settles[i].Key = key, key
		b.claims[i].Mode, b.claims[i].Place = mode, time.Hour
	}
}

func (b *batch) renew(t *testing.T, s dibs.Store) {
	t.Helper()
	b.done(t, s.Renew(t.Context(), b.renewals, b.errs))
}

func (b *batch) release(t *testing.T, s dibs.Store) {
	t.Helper()
	b.done(t, s.Settle(t.Context(), b.settles, b.errs))
}

// keep ends all with a record of so many bytes.
func (b *batch) keep(t *testing.T, s dibs.Store, data int, retention time.Duration) {
	t.Helper()
	for i := range b.settles {
		b.settles[i].Outcome, b.settles[i].Retention = dibs.Keep, retention
		b.settles[i].Data = []byte(strings.Repeat("x", data))
	}
	b.done(t, s.Settle(t.Context(), b.settles, b.errs))
}

func (b *batch) done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range b.errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// replays makes the claims ones of others that a record answers.
func (b *batch) replays() {
	for i := range b.claims {
		b.claims[i].Token, b.claims[i].MaxAge = dibs.NewToken(), dibs.AnyAge
	}
}

// client returns a client of a store; it ends with the test.
func client(t *testing.T, s dibs.Store, o *dibs.Options) *dibs.Client {
	t.Helper()
	c, err := dibs.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// crowd is waiters for one key, spread over processes, and whoever holds it.
type crowd struct {
	holder *dibs.Lease
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// gather has so many wait for a key, as evenly as may be in each of the clients. They
// come one after the other.
func gather(t *testing.T, watcher dibs.Store, clients []*dibs.Client, name string, waiters int) *crowd {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{cancel: cancel}
	var err error
	if c.holder, err = clients[0].Acquire(ctx, name, nil); err != nil {
		t.Fatal(err)
	}
	for i := range waiters {
		c.done.Go(func() {
			lease, err := clients[i%len(clients)].Acquire(ctx, name, nil)
			if err != nil {
				t.Error(err)
				return
			}
			// On a machine that stands still for a second a turn may be over.
			if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrLost) {
				t.Error(err)
			}
		})
		look := newBatch("", 1)
		look.claims[0].Key, look.claims[0].Mode = dibs.Key{Name: name}, dibs.Look
		eventually(t, "somebody more waits", func() bool {
			look.claim(t, watcher, dibs.Held)
			return look.answers[0].Ahead > i
		})
	}
	return c
}

// goOn lets all have the key, one after the other.
func (c *crowd) goOn(t *testing.T) {
	t.Helper()
	if err := c.holder.Release(); err != nil {
		t.Error(err)
	}
	c.done.Wait()
	c.cancel()
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		<-tick.C
	}
}

// pass lets time pass in which something is counted.
func pass(d time.Duration) time.Duration {
	start := time.Now()
	<-time.After(d)
	return time.Since(start)
}
