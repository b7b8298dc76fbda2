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

var expiryProperties = []Property{
	property("LeaseEndsOnTime",
		"The key of a crashed holder becomes free when its lease expires. Not earlier, because what the holder started may still run. Not later, because others wait.", func(t *Trial) {
			p, q := t.process(), t.process()
			k := key("k")
			before := time.Now()
			t.granted("the claim", p.try(k, store.NewToken(), ttl(t.short())), 1)
			t.ends("the lease", before, time.Now(), t.short(), func() bool {
				a := q.try(k, store.NewToken())
				if a.State == store.Held {
					return false
				}
				t.granted("the successor", a, 2)
				return true
			})
		}),
	property("ExpiredLeaseStaysExpired",
		"A lease that has expired has ended, even if no call has noticed it. If a late renewal or settlement still worked, another caller could hold the key by then.", func(t *Trial) {
			p := t.process()
			revivals := map[string]func(k store.Key, a store.Token) error{
				"renew":   func(k store.Key, a store.Token) error { return p.renew(k, a, long) },
				"release": p.release,
				"keep":    func(k store.Key, a store.Token) error { return p.keep(k, a, "late") },
				"abandon": p.abandon,
				"undo":    p.undo,
			}
			a := store.NewToken()
			for name := range revivals {
				t.granted("the claim", p.try(key(name), a, ttl(t.short())), 1)
			}
			t.outlast(t.short())
			for name, revive := range revivals {
				k := key(name)
				t.lost(name+" after the end", revive(k, a))
				t.granted("the successor", p.try(k, store.NewToken(), answerable), 2)
				t.lost(name+" after the succession", revive(k, a))
			}
		}),
	property("ExpiredLeaseIsANewGrant",
		"A claim that arrives again after its lease expired is a new grant. The old fence and the old count would hide that the lease was abandoned in between.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			fence := t.granted("the claim", p.try(k, a, ttl(t.short())), 1)
			t.outlast(t.short())
			if again := t.granted("the claim again, after the end", p.try(k, a), 2); again <= fence {
				t.Fatalf("the second lease's fence %d does not rise above the first one's %d", again, fence)
			}
		}),
	property("RenewExtends",
		"A holder that works longer than its TTL renews. If a confirmed renewal did nothing, a second caller would get the key.", func(t *Trial) {
			p, q := t.process(), t.process()
			t.inTime("renewed", func(k store.Key, d time.Duration) bool {
				a := store.NewToken()
				before := time.Now()
				fence := t.granted("the claim", p.try(k, a, ttl(d)), 1)
				err := q.renew(k, a, long)
				if time.Since(before) >= d {
					return false
				}
				t.ok("renew", err)
				t.outlast(d)
				t.state("another claim after the first lease's end", q.try(k, store.NewToken()), store.Held)
				t.ok("renew again", p.renew(k, a, long))
				t.keeps("the holder, asking again", p.try(k, a), fence)
				t.ok("release", p.release(k, a))
				return true
			})
		}),
	property("RenewSetsTheEnd",
		"A renewed lease lasts TTL from the renewal, even if that is shorter than before: a client that shortens its lease wants the key to be free soon if it dies.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a), 1)
			before := time.Now()
			t.ok("renew", p.renew(k, a, t.short()))
			t.ends("the lease", before, time.Now(), t.short(), func() bool {
				return p.try(k, store.NewToken()).State == store.Granted
			})
		}),
	property("RenewAnswersEachAlone",
		"One call renews all leases of a process. A holder that gets the answer for another lease would work without its own.", func(t *Trial) {
			p := t.process()
			mine, others, free, dead, mine2 := key("mine"), key("others"), key("free"), key("dead"), key("mine2")
			a, b := store.NewToken(), store.NewToken()
			t.granted("a dying lease", p.try(dead, a, ttl(t.short())), 1)
			t.outlast(t.short())
			t.granted("mine", p.try(mine, a), 1)
			t.granted("mine2", p.try(mine2, a), 1)
			t.granted("the other's", p.try(others, b), 1)
			errs := p.renewals(
				store.Renewal{Key: mine, Token: a, TTL: long},
				store.Renewal{Key: others, Token: a, TTL: long},
				store.Renewal{Key: free, Token: a, TTL: long},
				store.Renewal{Key: mine, Token: a, TTL: 0},
				store.Renewal{Key: mine, Token: a, TTL: long, Progress: make([]byte, store.MaxProgress+1)},
				store.Renewal{Key: key(""), Token: a, TTL: long},
				store.Renewal{Key: dead, Token: a, TTL: long},
				store.Renewal{Key: mine2, Token: a, TTL: long},
			)
			t.ok("renewing one's own", errs[0])
			t.lost("renewing another's", errs[1])
			t.lost("renewing a key without a holder", errs[2])
			t.alone("renewing for TTL 0", errs[3])
			t.alone("renewing with too much progress", errs[4])
			t.alone("renewing the empty key", errs[5])
			t.lost("renewing what has expired", errs[6])
			t.ok("renewing one's other own", errs[7])
			t.ok("the other's lease is unharmed", p.renew(others, b, long))
		}),
}

// ends polls what began between before and after, and was to last d, and fails
// the trial when it ends too early or too late. A slow machine causes neither: early
// is counted from before the first call, and late until a claim is sent.
func (t *Trial) ends(what string, before, after time.Time, d time.Duration, over func() bool) {
	t.Helper()
	for {
		asked := time.Now()
		if over() {
			if lasted := time.Since(before); lasted < d-tick {
				t.Fatalf("%s was over after %v, it was to last %v", what, lasted, d)
			}
			return
		}
		if lasted := asked.Sub(after); lasted > d+t.h.Late {
			t.Fatalf("%s was not over after %v, it was to last %v", what, lasted, d)
		}
		time.Sleep(t.h.Short / 20)
	}
}

var staleProperties = []Property{
	property("FormerHolderChangesNothing",
		"A caller that lost its lease and does not know it still renews and settles. It must get ErrLost, and the next holder must not be affected.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.granted("the first holder", p.try(k, a), 1)
			t.ok("its release", p.release(k, a))
			fence := t.granted("the second holder", q.try(k, b), 1)
			for range 2 {
				t.lost("renew by the first", p.renew(k, a, long))
				t.lost("release by the first", p.release(k, a))
				t.lost("keep by the first", p.keep(k, a, "stale"))
				t.lost("abandon by the first", p.abandon(k, a))
			}
			t.state("a third", p.try(k, store.NewToken(), answerable), store.Held)
			t.keeps("the second, asking again", q.try(k, b), fence)
			t.ok("release by the second", q.release(k, b))
			t.granted("a third, after the release", p.try(k, store.NewToken(), answerable), 1)
		}),
	property("LoserFreesNothing",
		"A caller that did not get the key cleans up after itself. If it deleted the key, the holder would work without its lock.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, winner, loser, waiter := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the winner", p.try(k, winner), 1)
			t.state("the loser", q.try(k, loser), store.Held)
			t.lost("release by the loser", q.release(k, loser))
			t.lost("release by another caller", q.release(k, store.NewToken()))
			t.state("a claim after the loser's release", q.try(k, store.NewToken()), store.Held)
			t.state("the waiter", q.queue(k, waiter), store.Held)
			t.ok("the waiter gives up", q.release(k, waiter))
			t.state("a claim after the waiter gave up", q.try(k, store.NewToken()), store.Held)
			t.ok("renew by the winner", p.renew(k, winner, long))
		}),
	property("WaiterWritesNoRecord",
		"Only the holder's answer is the answer. A token that only waits has run nothing, or has lost the lease under which it ran.", func(t *Trial) {
			p := t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.state("the waiter", p.queue(k, b), store.Held)
			t.lost("keep by the waiter", p.keep(k, b, "mine"))
			t.state("a reader", p.look(k, answerable), store.Held)
			t.ok("renew by the holder", p.renew(k, a, long))
			t.ok("release by the holder", p.release(k, a))
			t.granted("the waiter, which still has its place", p.try(k, b), 1)
		}),
}
