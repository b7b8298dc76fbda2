package storetest

import (
	"github.com/dibs-go/dibs/store"
)

var pruneProperties = []Property{
	property("PruneRemovesWhatEnded",
		"A table that only grows gets slow. Prune removes as much ended data as asked for, and nothing that a caller could still need.", func(t *Trial) {
			const n = 7
			p, q := t.process(), t.process()
			prune := func(limit int) int {
				t.Helper()
				got, err := q.store.(store.Pruner).Prune(t.Context(), limit)
				if err != nil {
					t.Fatalf("Prune: %v", err)
				}
				if got < 0 || limit > 0 && got > limit {
					t.Fatalf("Prune with the limit %d removed %d", limit, got)
				}
				return got
			}
			a, w := store.NewToken(), store.NewToken()
			t.granted("a live lease", p.try(key("held"), a, asked("this")), 1)
			t.waits("a live place", p.queue(key("held"), w), 0)
			t.waits("a reserved place", p.reserve(key("reserved"), a), 0)
			t.granted("a record to be", p.try(key("done"), a, asked("this")), 1)
			t.ok("keep", p.keep(key("done"), a, "answer"))
			t.granted("a caller that dies", p.try(key("abandoned"), store.NewToken(), ttl(t.short())), 1)
			t.granted("another that dies", p.try(key("unknown"), a, ttl(t.short()), atMostOnce), 1)
			for i := range n {
				k := key("ended" + itoa(i))
				t.granted("a short record to be", p.try(k, a, asked("this")), 1)
				t.ok("keep", p.keepFor(k, a, "answer", t.short()))
			}
			t.outlast(t.short())

			// Stores also prune on their own, and may have done so.
			removed := prune(2)
			removed += prune(0)
			if removed > n {
				t.Errorf("%d were removed, only %d had ended", removed, n)
			}
			if again := prune(0); again != 0 {
				t.Errorf("%d more were removed after all were", again)
			}
			for i := range n {
				t.granted("a key whose record ended", p.try(key("ended"+itoa(i)), store.NewToken(), answerable, asked("that")), 1)
			}
			t.state("the live lease", p.try(key("held"), store.NewToken()), store.Held)
			t.ok("its renewal", p.renew(key("held"), a, long))
			t.ok("its release", p.release(key("held"), a))
			t.granted("the live place", p.queue(key("held"), w), 1)
			t.state("behind the reserved place", p.try(key("reserved"), store.NewToken()), store.Held)
			t.granted("from the reserved place", p.try(key("reserved"), w, from(a)), 1)
			t.done("the live record", p.look(key("done"), answerable), "answer")
			t.granted("after the abandoned", p.try(key("abandoned"), store.NewToken()), 2)
			t.unknown("after the unknown", p.try(key("unknown"), store.NewToken()), a)
		}).needs(Pruner),
}
