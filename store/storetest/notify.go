package storetest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/store"
)

var notifyProperties = []Property{
	property("NotifyServesTheNext",
		"A waiter that is woken at once works a moment after the key is free, and does not wait for its next question. From that step on no other caller can get the key.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			for name, end := range map[string]func(store.Key, store.Token) error{
				"release": p.release,
				"keep":    func(k store.Key, a store.Token) error { return p.keep(k, a, "answer") },
				"undo":    p.undo,
				"abandon": p.abandon,
			} {
				k, a, b, c := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				wakes.ready(k)
				last := t.granted("the holder", p.try(k, a), 1)
				last = max(last, t.waits("the first waiter", q.queue(k, b), 0))
				last = max(last, t.waits("the second waiter", q.queue(k, c), 1))
				t.ok(name, end(k, a))
				t.state("a look at once", p.look(k), store.Held)
				t.state("another caller at once", p.try(k, store.NewToken()), store.Held)
				attempt := 1
				if name == "abandon" {
					attempt = 2
				}
				fence, _ := wakes.turn("the first waiter, after a "+name, k, b, last, attempt)
				if again := t.granted("the first waiter, asking again", q.queue(k, b), attempt); again != fence {
					t.Fatalf("the first waiter had the fence %d and holds with %d", fence, again)
				}
				if wakes.pushed(c) {
					t.Fatal("the second waiter was pushed a grant before its turn")
				}
				wakes.forget(c)
				t.ok("the first waiter's release", q.release(k, b))
				wakes.turn("the second waiter", k, c, fence, 1)
				t.ok("the second waiter's release", q.release(k, c))
				t.state("a look after that", p.look(k), store.Free)
			}
		}).needs(Notifier),
	property("NotifyWakesTheAnswered",
		"All duplicates that wait for one answer are woken when it is there, and ask. The lock's next waiter does not wait for them for long.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, locker, dups := key("k"), store.NewToken(), store.NewToken(), tokens(3)
			wakes.ready(k)
			last := t.granted("the holder", p.try(k, a, answerable), 1)
			t.waits("a duplicate", q.queue(k, dups[0], answerable), 0)
			t.waits("another duplicate", q.queue(k, dups[1], answerable), 1)
			t.waits("a lock", q.queue(k, locker), 2)
			t.waits("a duplicate behind it", q.queue(k, dups[2], answerable), 3)
			t.ok("keep", p.keep(k, a, "answer"))
			for _, dup := range []store.Token{dups[2], dups[1], dups[0]} {
				wakes.woken("a duplicate", dup)
				t.done("a duplicate", q.queue(k, dup, answerable), "answer")
			}
			wakes.turn("the lock", k, locker, last, 1)
		}).needs(Notifier),
	property("NotifyStops",
		"A closed client must not be called any more. The waiters of other clients are still woken.", func(t *Trial) {
			p, q := t.process(), t.process()
			stopped, going := q.listen(), q.listen()
			k, a, b, c := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			going.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("the waiter", q.queue(k, b), 0)
			stopped.stop()
			t.ok("release", p.release(k, a))
			going.turn("the waiter, by the other listener", k, b, last, 1)
			t.waits("another", q.queue(k, c), 0)
			going.stop()
			t.ok("release", q.release(k, b))
			t.state("another caller", p.try(k, store.NewToken()), store.Held)
			t.granted("another, asking", q.queue(k, c), 1)
			if stopped.has(b) || going.has(c) {
				t.Error("a listener was called after it was stopped")
			}
		}).needs(Notifier),
	property("UnreachableWaiterKeepsItsNumber",
		"A store may skip a waiter whose process does not listen, so that the key is not idle. That waiter keeps its number: when it asks, it comes before all that joined later.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, unreachable, b, late := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("an unreachable waiter", p.queue(k, unreachable), 0)
			last = max(last, t.waits("a reachable waiter", q.queue(k, b), 1))
			t.waits("a late one", p.queue(k, late), 2)
			t.ok("release", p.release(k, a))
			t.state("another caller", p.try(k, store.NewToken()), store.Held)
			d := p.queue(k, unreachable)
			if d.State == store.Held { // the store has skipped it
				t.waits("the skipped waiter", d, 0)
				wakes.turn("the reachable waiter", k, b, last, 1)
				t.ok("its release", q.release(k, b))
				t.state("the late one", p.queue(k, late), store.Held)
				t.granted("the skipped waiter", p.queue(k, unreachable), 1)
				return
			}
			t.granted("the unreachable waiter", d, 1)
			t.ok("its release", p.release(k, unreachable))
			wakes.turn("the reachable waiter", k, b, d.Fence, 1)
		}).needs(Notifier),
	property("NotifyServesTheWorker",
		"A worker that waits at its job's place begins when the place's turn comes, although the place is reserved. It gets a lease at the place's number.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			for _, name := range []string{"released", "undone", "abandoned"} {
				k, a, job, worker, b := key(name), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
				wakes.ready(k)
				last := t.granted("the holder", p.try(k, a), 1)
				t.waits("reserving", p.reserve(k, job), 0)
				t.waits("a waiter behind it", q.queue(k, b), 1)
				last = max(last, t.waits("the worker", q.queue(k, worker, from(job)), 0))
				t.ok("release", p.release(k, a))
				fence, _ := wakes.turn("the worker", k, worker, last, 1, from(job))
				t.ok("its renewal", q.renew(k, worker, long))
				t.waits("another worker", p.try(k, store.NewToken(), from(job)), 0)
				t.waits("the waiter", q.queue(k, b), 0)
				attempt := 1
				switch name {
				case "undone":
					t.ok("undo", q.undo(k, worker))
				case "abandoned":
					attempt = 2
					t.ok("abandon", q.abandon(k, worker))
				}
				if name != "released" {
					t.waits("the waiter, behind the place", q.queue(k, b), 1)
					worker = store.NewToken()
					fence = t.granted("the next worker", p.try(k, worker, from(job)), attempt)
				}
				wakes.forget(b)
				t.ok("the worker's release", q.release(k, worker))
				t.lost("giving the place up", p.release(k, job))
				wakes.turn("the waiter", k, b, fence, 1)
			}
		}).needs(Notifier),
	property("NotifySetsTheGrace",
		"A worker that begins with a pushed grant does not claim again. Its job's place must still get the Grace that the worker asked with, in case the worker dies.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, job, worker := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job, grace(long)), 0)
			edits := []edit{from(job), grace(t.short())}
			last = max(last, t.waits("the worker", q.queue(k, worker, edits...), 0))
			t.ok("release", p.release(k, a))
			wakes.turn("the worker", k, worker, last, 1, edits...)
			t.ok("abandon", q.abandon(k, worker))
			before := time.Now()
			t.nowhere("another caller", p.try(k, store.NewToken()))
			t.freed("the place", before, time.Now(), t.short(), p, k)
		}).needs(Notifier),
	property("NotifyWakesTheDeleted",
		"Two workers have one job. When one of them is done, the job's number is deleted, and the other worker is woken because its place has ended.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			for name, end := range map[string]func(store.Key, store.Token) error{
				"release": p.release,
				"keep":    func(k store.Key, a store.Token) error { return p.keep(k, a, "answer") },
			} {
				k, job, first, second := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				wakes.ready(k)
				t.waits("reserving", p.reserve(k, job), 0)
				last := t.granted("the first worker", p.try(k, first, from(job)), 1)
				t.waits("the second worker", q.queue(k, second, from(job)), 0)
				t.ok("the first worker's "+name, end(k, first))
				wakes.woken("the second worker", second)
				t.lost("giving up its place", q.release(k, second))
				d := q.queue(k, second, from(job))
				if t.granted("the second worker, as from no place", d, 1); d.Fence <= last {
					t.Fatalf("the second worker has the fence %d, after %d", d.Fence, last)
				}
			}
		}).needs(Notifier),
	property("NotifyUnderLoad",
		"Many waiters in several processes begin with their grants, some at reserved places, and some give up at the same moment. They must still run alone, one after the other.", func(t *Trial) {
			const callers, rounds = 6, 20
			procs := []*process{t.process(), t.process(), t.process()}
			wakes := make([]*listener, len(procs))
			for i, p := range procs {
				wakes[i] = p.listen()
			}
			k := key("k")
			var inside, pushed atomic.Int64
			var highest atomic.Uint64
			var running sync.WaitGroup
			for i := range callers {
				p, wakes := procs[i%len(procs)], wakes[i%len(procs)]
				running.Go(func() {
					for round := range rounds {
						w := store.NewToken()
						var edits []edit
						if round%3 == 0 {
							job := store.NewToken()
							edits = []edit{from(job)}
							procs[(i+1)%len(procs)].reserve(k, job)
						}
						if round%4 == 0 && p.queue(k, w, edits...).State == store.Held {
							_ = p.undo(k, w)
							w = store.NewToken()
						}
						var d store.Answer
						t.poll("a turn", func() bool {
							// As in a client, a pushed grant counts if its fence is above that of the
							// last answer, and for PushedTTL from the moment of that question.
							wakes.forget(w)
							asked := time.Now()
							if d = p.queue(k, w, edits...); d.State == store.Granted {
								return true
							}
							got, ok := wakes.within(w, store.PushedTTL/2)
							if !ok || got.State != store.Granted || got.Fence <= d.Fence || time.Since(asked) > t.turn*3/4 {
								return false
							}
							pushed.Add(1)
							d = got
							return true
						})
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d holders at once", n)
						}
						if last := highest.Swap(d.Fence); last >= d.Fence {
							t.Errorf("the fence %d came after %d", d.Fence, last)
						}
						inside.Add(-1)
						if err := p.release(k, w); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
			running.Wait()
			t.Logf("of %d grants %d were pushed", callers*rounds, pushed.Load())
		}).needs(Notifier).heavy(),
}
