package storetest

import "github.com/dibs-go/dibs/store"

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
