package sqltest

import (
	"math"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Counted is a connection that counts the messages that it sends. Each message begins a round
// trip.
type Counted struct {
	net.Conn
	N *atomic.Int64
}

// Write counts.
func (c *Counted) Write(b []byte) (int, error) {
	c.N.Add(1)
	return c.Conn.Write(b)
}

// Cost is what a call takes: statements, counted by the server, and round trips.
type Cost struct{ Statements, RoundTrips int }

// Measure returns the least cost of six runs, because drivers sometimes check whether a connection
// is alive. It makes some runs before, so that all statements are prepared.
func Measure(t testing.TB, count func() Cost, run func(i int) error) Cost {
	t.Helper()
	least := Cost{math.MaxInt, math.MaxInt}
	for i := range 3 + 6 {
		before := count()
		testkit.Must(t, run(i))
		after := count()
		if i >= 3 {
			least.Statements = min(least.Statements, after.Statements-before.Statements)
			least.RoundTrips = min(least.RoundTrips, after.RoundTrips-before.RoundTrips)
		}
	}
	return least
}

// Costs measures the calls of a store that does not prune in the background.
func Costs(t *testing.T, k *Kind, s Store, count func() Cost, want map[string]Cost) {
	t.Helper()
	granted := make(chan store.Token, 1)
	t.Cleanup(s.Notify(func(token store.Token, a store.Answer) {
		if a.State == store.Granted {
			granted <- token
		}
	}))
	if k.Listen != nil {
		k.Listen(t, s)
	}
	const many = 64
	// claim has new tokens claim one key or many keys.
	claims, answers := make([]store.Claim, many), make([]store.Answer, many)
	errs, renewals, settlements := make([]error, many), make([]store.Renewal, many), make([]store.Settlement, many)
	claim := func(n int, mode store.Mode) error {
		for i := range n {
			claims[i] = store.Claim{
				Key: store.Key{Name: string(rune('a' + i))}, Token: store.NewToken(), Mode: mode, TTL: time.Minute, PlaceTTL: time.Minute, Permits: 1, Weight: 1, MaxAge: store.AnyAge,
			}
			renewals[i] = store.Renewal{Key: claims[i].Key, Token: claims[i].Token, TTL: time.Minute}
			settlements[i] = store.Settlement{Key: claims[i].Key, Token: claims[i].Token}
		}
		return s.Claim(t.Context(), claims[:n], answers[:n])
	}
	renew := func(n int) error { return s.Renew(t.Context(), renewals[:n], errs[:n]) }
	settle := func(n int) error { return s.Settle(t.Context(), settlements[:n], errs[:n]) }
	got := map[string]Cost{}
	// measure measures one step of a run.
	measure := func(name string, before func(), step func() error, after func()) {
		t.Helper()
		var cost Cost
		got[name] = Measure(t, func() Cost { return cost }, func(int) error {
			if before != nil {
				before()
			}
			clear(errs)
			start := count()
			err := step()
			end := count()
			cost.Statements += end.Statements - start.Statements
			cost.RoundTrips += end.RoundTrips - start.RoundTrips
			for i := range answers {
				if answers[i].Err != nil || errs[i] != nil {
					t.Errorf("%s: %v, %v", name, answers[i].Err, errs[i])
				}
			}
			if after != nil {
				after()
			}
			return err
		})
	}
	must := func(err error) {
		t.Helper()
		testkit.Must(t, err)
	}
	for n, suffix := range map[int]string{1: "", many: " of 64"} {
		claimed, settled := func() { must(claim(n, store.Try)) }, func() { must(settle(n)) }
		measure("claim"+suffix, nil, func() error { return claim(n, store.Try) }, settled)
		measure("renewal"+suffix, claimed, func() error { return renew(n) }, settled)
		measure("settlement"+suffix, claimed, func() error { return settle(n) }, nil)
	}
	queue := func(holder store.Token) error {
		must(claim(1, store.Queue))
		if answers[0].State != store.Held {
			t.Fatalf("%+v, want that it waits behind %v", answers[0], holder)
		}
		return nil
	}
	var holder store.Settlement
	held := func() {
		must(claim(1, store.Try))
		holder = settlements[0]
	}
	release := func() {
		testkit.Must(t, Settle(t, s, holder))
	}
	measure("wait", held, func() error { return queue(holder.Token) }, func() {
		must(s.Settle(t.Context(), []store.Settlement{{Key: holder.Key, Token: settlements[0].Token, Outcome: store.Undo}}, make([]error, 1)))
		release()
	})
	// A hand-over is one settlement, because the grant is pushed to the waiter.
	measure("hand-over", func() { held(); must(queue(holder.Token)) }, func() error {
		release()
		select {
		case token := <-granted:
			if token != settlements[0].Token {
				t.Errorf("%v was granted, want %v", token, settlements[0].Token)
			}
		case <-time.After(time.Minute):
			t.Fatal("the waiter was not notified of its grant")
		}
		return nil
	}, func() {
		must(renew(1)) // which confirms it
		must(settle(1))
	})
	must(claim(1, store.Try))
	settlements[0].Outcome, settlements[0].Retention, settlements[0].Data = store.Keep, time.Hour, []byte("answer")
	must(settle(1))
	measure("replay", nil, func() error {
		err := claim(1, store.Try)
		if answers[0].State != store.Done {
			t.Errorf("%+v, want the record", answers[0])
		}
		return err
	}, nil)
	for name, cost := range got {
		t.Logf("a %s takes %d statements and %d round trips", name, cost.Statements, cost.RoundTrips)
		if cost != want[name] {
			t.Errorf("a %s takes %+v, want %+v", name, cost, want[name])
		}
	}
}
