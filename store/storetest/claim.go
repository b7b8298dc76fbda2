package storetest

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
)

var claimProperties = []Property{
	property("ClaimIsExclusive",
		"While one token holds a key, no other token is granted. Otherwise two callers run at once.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.granted("the first claim", p.try(k, a), 1)
			t.state("the second claim, in the same process", p.try(k, b), store.Held)
			t.state("the second claim, in another process", q.try(k, b), store.Held)
			t.ok("release", p.release(k, a))
			t.granted("the second claim after the release", q.try(k, b), 1)
			t.state("the first caller, again", p.try(k, store.NewToken()), store.Held)
		}),
	property("ClaimIsIdempotent",
		"A claim whose reply was lost is sent again. If that was a new grant or Held, the caller could not know whether it holds the key.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), store.NewToken()
			fence := t.granted("the claim", p.try(k, a), 1)
			for _, p := range []*process{p, q} {
				t.keeps("the same claim again", p.try(k, a), fence)
				t.keeps("the same claim again, queueing", p.queue(k, a), fence)
			}
			t.ok("release", q.release(k, a))
			t.granted("another claim after one release", p.try(k, store.NewToken()), 1)
		}),
	property("ClaimAgainExtendsTheLease",
		"A claim that is sent again grants a lease of TTL from that moment, because a client trusts its lease from the moment it sent the last claim.", func(t *Trial) {
			p := t.process()
			t.inTime("extended", func(k store.Key, d time.Duration) bool {
				a := store.NewToken()
				before := time.Now()
				t.granted("the claim", p.try(k, a, ttl(d)), 1)
				again := p.try(k, a)
				if time.Since(before) >= d {
					return false
				}
				t.granted("the same claim with a long lease", again, 1)
				t.outlast(d)
				t.state("another claim after the first lease's end", p.try(k, store.NewToken()), store.Held)
				t.ok("release by the holder", p.release(k, a))
				return true
			})
		}),
	property("AmbiguousClaim",
		"A client that does not know whether its claim arrived sends it again, perhaps while the first copy is under way. All copies are one grant, which one settlement ends.", func(t *Trial) {
			procs := []*process{t.process(), t.process()}
			k, a := key("k"), store.NewToken()
			answers := make([]store.Answer, 8)
			var running sync.WaitGroup
			for i := range answers {
				running.Go(func() { answers[i] = procs[i%2].try(k, a) })
			}
			running.Wait()
			fence := answers[0].Fence
			for _, answer := range answers {
				t.keeps("a copy of the claim", answer, fence)
			}
			t.ok("one release", procs[1].release(k, a))
			t.granted("the next claim", procs[0].try(k, store.NewToken()), 1)
		}),
	property("ExtremeDurations",
		"A duration may be a millisecond or the longest that a time.Duration can hold. If a sum overflows, a lease ends before it begins.", func(t *Trial) {
			p := t.process()
			const shortest, longest = time.Millisecond, time.Duration(math.MaxInt64)
			a, b := store.NewToken(), store.NewToken()

			k := key("short")
			t.granted("a claim for a millisecond", p.try(k, a, ttl(shortest)), 1)
			t.outlast(t.short())
			t.granted("the next, for long", p.try(k, b), 2)
			t.waits("a place for a millisecond", p.queue(k, a, placeTTL(shortest)), 0)
			t.outlast(t.short())
			t.lost("settling the place", p.release(k, a))
			t.ok("a renewal for a millisecond", p.renew(k, b, shortest))
			t.outlast(t.short())
			c := store.NewToken()
			t.state("the next", p.try(k, c), store.Granted)
			t.ok("a record for a millisecond", p.keepFor(k, c, "answer", shortest))
			t.outlast(t.short())
			t.granted("the last", p.try(k, store.NewToken(), answerable), 1)

			// A store may refuse what it cannot count, alone and with nothing
			// done, but it must not accept and then miscount it.
			k = key("long")
			if d := p.try(k, a, ttl(longest)); d.Err == nil {
				t.granted("a claim forever", d, 1)
			} else {
				t.granted("a claim for long", p.try(k, a), 1)
			}
			if err := p.renew(k, a, longest); isLost(err) {
				t.Fatal("the lease is lost by a renewal forever")
			}
			if d := p.queue(k, b, placeTTL(longest)); d.Err == nil {
				t.waits("a place forever", d, 0)
			} else {
				t.waits("a place for long", p.queue(k, b), 0)
			}
			d := p.try(k, store.NewToken())
			if t.state("another caller", d, store.Held); d.Left <= 0 {
				t.Fatalf("a lease forever has %v left", d.Left)
			}
			t.waits("one behind the place", p.queue(k, c), 1)
			if err := p.keepFor(k, a, "answer", longest); err != nil {
				t.ok("a record for long", p.keep(k, a, "answer"))
			}
			t.done("a reader", p.look(k, answerable), "answer")
			t.granted("the place", p.queue(k, b), 1)
		}),
	property("OwnersAreOnlyRead",
		"An owner is text for people. No text may make a claim fail, or make two claims differ.", func(t *Trial) {
			p := t.process()
			for i, o := range []store.Owner{
				{},
				{Host: "web 1", PID: -1, Label: "charge the card"},
				{Host: "\x00", PID: math.MaxInt, Label: "\x00\xff\xfe '\"\\%\n"},
				{Host: strings.Repeat("h", 300), PID: 1, Label: strings.Repeat("\u00e9", 300)},
			} {
				k, a := key("k"+itoa(i)), store.NewToken()
				fence := t.granted("a claim by "+quoted(o.String()), p.try(k, a, owner(o)), 1)
				t.keeps("the same without an owner", p.try(k, a), fence)
				t.waits("a place for "+quoted(o.String()), p.queue(k, store.NewToken(), owner(o)), 0)
			}
		}),
}
