package storetest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/store"
)

var permitsProperties = []Property{
	property("PermitsAreCounted",
		"A key with n permits has at most n holders. The next caller waits until one of them is done, whichever it is.", func(t *Trial) {
			p, q := t.process(), t.process()
			for _, n := range []int{2, 3, 7} {
				k, hs, ws := key("k"+itoa(n)), tokens(n), tokens(3)
				var last uint64
				for _, h := range hs {
					fence := t.granted("a holder", p.try(k, h, permits(n)), 1)
					if fence <= last {
						t.Fatalf("the fence %d does not rise above the last one, %d", fence, last)
					}
					last = fence
				}
				t.state("one too many", q.try(k, store.NewToken(), permits(n)), store.Held)
				t.state("one too many looks", q.look(k, permits(n)), store.Held)
				for i, w := range ws {
					t.waits("a waiter", q.queue(k, w, permits(n)), i)
				}
				t.ok("a holder in the middle releases", q.release(k, hs[1]))
				t.granted("the first waiter", q.queue(k, ws[0], permits(n)), 1)
				t.waits("the second", q.queue(k, ws[1], permits(n)), 0)
				t.lost("renew by the holder that released", p.renew(k, hs[1], long))
				t.ok("renew by another", p.renew(k, hs[0], long))
				t.ok("the first releases", p.release(k, hs[0]))
				t.ok("the first waiter releases", p.release(k, ws[0]))
				t.granted("the second waiter", q.queue(k, ws[1], permits(n)), 1)
				t.granted("the third waiter", q.queue(k, ws[2], permits(n)), 1)
				t.state("one too many", q.try(k, store.NewToken(), permits(n)), store.Held)
			}
		}),
	property("PermitsExpireOneByOne",
		"Each of several holders has its own lease. A holder that dies frees only its own permit.", func(t *Trial) {
			p := t.process()
			k, dead, alive := key("k"), store.NewToken(), store.NewToken()
			t.granted("a caller that dies", p.try(k, dead, permits(2)), 1)
			t.granted("a caller that lives", p.try(k, alive, permits(2)), 1)
			t.ok("the last renewal", p.renew(k, dead, t.short()))
			t.outlast(t.short())
			t.lost("renew by the dead one", p.renew(k, dead, long))
			t.granted("a third", p.try(k, store.NewToken(), permits(2)), 2)
			t.state("a fourth", p.try(k, store.NewToken(), permits(2)), store.Held)
			t.ok("renew by the caller that lives", p.renew(k, alive, long))
		}),
	property("PermitsChange",
		"A new version of a program may have another number of permits. Its claims wait until the leases with the old number have ended, and the claims behind them wait, too. So the numbers never mix, and no claim waits forever.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, old, b, c, d := key("k"), tokens(2), store.NewToken(), store.NewToken(), store.NewToken()
			for _, a := range old {
				t.granted("a holder of one of 3", p.try(k, a, permits(3)), 1)
			}
			for _, n := range []int{1, 2, 4, 9} {
				t.state("a try with "+itoa(n), q.try(k, store.NewToken(), permits(n)), store.Held)
				t.state("a look with "+itoa(n), q.look(k, permits(n)), store.Held)
			}
			t.waits("the first with 5", q.queue(k, b, permits(5)), 0)
			t.waits("one with 3 behind it", p.queue(k, c, permits(3)), 1)
			t.waits("another with 5", q.queue(k, d, permits(5)), 2)
			t.state("another caller with 3", p.try(k, store.NewToken(), permits(3)), store.Held)
			t.ok("one of the old releases", p.release(k, old[0]))
			t.waits("the first with 5", q.queue(k, b, permits(5)), 0)
			t.waits("the one with 3", p.queue(k, c, permits(3)), 1)
			t.ok("the other releases", p.release(k, old[1]))
			t.granted("the first with 5", q.queue(k, b, permits(5)), 1)
			t.waits("the one with 3", p.queue(k, c, permits(3)), 0)
			t.waits("the other with 5, behind that", q.queue(k, d, permits(5)), 1)
			t.ok("the one with 3 gives up", p.release(k, c))
			t.granted("the other with 5", q.queue(k, d, permits(5)), 1)
			t.ok("its release", q.release(k, d))
			t.ok("the first one's release", q.release(k, b))
			t.granted("a mutex", p.try(k, store.NewToken()), 1)

			k = key("dead")
			t.granted("a holder of 2 that dies", p.try(k, b, permits(2), ttl(t.short())), 1)
			t.outlast(t.short())
			t.granted("a try with 1", q.try(k, store.NewToken()), 2)
		}),
	property("PermitsUnderLoad",
		"The sum of the weights must hold when many callers come at once, light and heavy.", func(t *Trial) {
			const n, callers, rounds = 5, 12, 4
			procs := []*process{t.process(), t.process(), t.process()}
			k := key("k")
			var inside, grants atomic.Int64
			var running sync.WaitGroup
			for i := range callers {
				p := procs[i%len(procs)]
				running.Go(func() {
					for range rounds {
						w, weighs := store.NewToken(), 1+rand.IntN(n)
						t.poll("a permit", func() bool {
							return p.queue(k, w, permits(n), weight(weighs)).State == store.Granted
						})
						if now := inside.Add(int64(weighs)); now > n {
							t.Errorf("weights of %d hold %d permits", now, n)
						}
						grants.Add(1)
						inside.Add(int64(-weighs))
						t.ok("release", p.release(k, w))
					}
				})
			}
			running.Wait()
			if got := grants.Load(); got != callers*rounds {
				t.Fatalf("%d grants, want %d", got, callers*rounds)
			}
		}).heavy(),
}

var weightProperties = []Property{
	property("WeightsAreSummed",
		"A writer takes all permits and a reader one, so readers share the key and a writer is alone. If weights could add up to more than the permits, a writer would run among readers.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, readers, writer := key("k"), tokens(2), store.NewToken()
			for _, r := range readers {
				t.granted("a reader", p.try(k, r, permits(5)), 1)
			}
			t.state("a writer among readers", q.try(k, writer, permits(5), weight(5)), store.Held)
			t.state("a caller that is too heavy by one", q.try(k, store.NewToken(), permits(5), weight(4)), store.Held)
			t.state("a caller that fits, looking", q.look(k, permits(5), weight(3)), store.Free)
			heavy := store.NewToken()
			t.granted("a caller that fits", q.try(k, heavy, permits(5), weight(3)), 1)
			t.state("a reader, when all permits are taken", p.try(k, store.NewToken(), permits(5)), store.Held)
			t.ok("a reader's end", p.release(k, readers[0]))
			t.state("a weight of 2, when one is left", p.try(k, store.NewToken(), permits(5), weight(2)), store.Held)
			t.ok("the heavy one's end", q.abandon(k, heavy))
			t.ok("the other reader's end", p.release(k, readers[1]))
			t.granted("the writer", q.try(k, writer, permits(5), weight(5)), 1)
			t.state("a reader beside the writer", p.try(k, store.NewToken(), permits(5)), store.Held)
			t.state("a reader beside the writer, looking", p.look(k, permits(5)), store.Held)
		}),
	property("HeavyIsNotStarved",
		"A writer that waits for readers must not wait for those that came after it, because callers are served in order. The readers behind it are served only after it, and then all at once.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, readers, writer, late := key("k"), tokens(2), store.NewToken(), tokens(3)
			wakes.ready(k)
			var last uint64
			for _, r := range readers {
				last = t.granted("a reader", p.try(k, r, permits(4)), 1)
			}
			t.waits("the writer", q.queue(k, writer, permits(4), weight(4)), 0)
			for i, r := range late {
				t.waits("late reader "+itoa(i), q.queue(k, r, permits(4)), i+1)
			}
			t.nowhere("a reader that tries", p.try(k, store.NewToken(), permits(4)))
			t.ok("a reader's end", p.release(k, readers[0]))
			t.waits("the writer", q.queue(k, writer, permits(4), weight(4)), 0)
			t.waits("a late reader, asking", q.queue(k, late[0], permits(4)), 1)
			t.ok("the other reader's end", p.release(k, readers[1]))
			last, _ = wakes.turn("the writer", k, writer, last, 1, permits(4), weight(4))
			for _, r := range late {
				if wakes.pushed(r) {
					t.Fatal("a late reader was pushed a grant before the writer's end")
				}
				wakes.forget(r)
			}
			t.ok("the writer's end", q.release(k, writer))
			for i, r := range late {
				last, _ = wakes.turn("late reader "+itoa(i), k, r, last, 1, permits(4))
			}
		}).needs(Notifier),
}

var lookProperties = []Property{
	property("LookSaysWhatTryWouldFind",
		"A Look gets the answer that a Try would get, but Free instead of a grant.", func(t *Trial) {
			p, q := t.process(), t.process()
			a := store.NewToken()
			t.state("an unused key", q.look(key("fresh")), store.Free)
			t.granted("a holder", p.try(key("held"), a, asked("this")), 1)
			t.state("a key that is held", q.look(key("held")), store.Held)
			t.state("a key that is held for something else", q.look(key("held"), asked("that")), store.Mismatch)
			t.state("a key that is held with other permits", q.look(key("held"), permits(2)), store.Held)
			t.ok("release", p.release(key("held"), a))
			t.state("a key that was held", q.look(key("held")), store.Free)
			t.granted("a holder of 2", p.try(key("two"), a, permits(2)), 1)
			t.state("a key with a permit left", q.look(key("two"), permits(2)), store.Free)
			t.granted("a claim", p.try(key("done"), a), 1)
			t.ok("keep", p.keep(key("done"), a, "answer"))
			t.done("a key with a record", q.look(key("done"), answerable), "answer")
			t.state("its lock", q.look(key("done")), store.Free)
			t.granted("another claim", p.try(key("unknown"), a, atMostOnce), 1)
			t.ok("abandon", p.abandon(key("unknown"), a))
			t.unknown("a key whose outcome is unknown", q.look(key("unknown")), a)
		}),
	property("LookChangesNothing",
		"A monitor that looks every second must not take leases, places or turns, and must not use up what the next holder should get.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b, watcher := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			look := func(want store.State) {
				t.Helper()
				for range 3 {
					c := lock(k, watcher)
					c.Mode = store.Look
					if d := q.claim(c); d.State != want || d.Queued {
						t.Fatalf("a look: %s, Queued %v, want %s without a place", stateName(d.State), d.Queued, stateName(want))
					}
				}
			}
			look(store.Free)
			t.granted("the holder", p.try(k, a), 1)
			look(store.Held)
			t.ok("progress", p.save(k, a, t.short(), "half"))
			t.outlast(t.short())
			look(store.Free)
			t.handed("the successor", p.try(k, a), 2, "half")
			look(store.Held)
			t.waits("a waiter", p.queue(k, b), 0)
			look(store.Held)
			t.lost("settling the watcher", q.release(k, watcher))
			t.ok("release", p.release(k, a))
			look(store.Held)
			t.granted("the waiter", p.queue(k, b), 1)
			t.ok("its release", p.release(k, b))
			look(store.Free)
			t.granted("the next", p.try(k, store.NewToken()), 1)
		}),
}
