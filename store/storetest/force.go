package storetest

import (
	"context"

	"github.com/dibs-go/dibs/store"
)

// forceProperties are what an operator does to a key.
var forceProperties = []Property{
	property("ForceReleaseEndsLeases",
		"An operator ends a stuck lease. Its holder loses it, nothing counts as abandoned, records stay, the job's place ends, and waiters are served.", func(t *Trial) {
			p, q := t.process(), t.process()
			release := q.inspect().ForceRelease
			k, a, b, w, last := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			t.count("force release without a holder", 0)(release(t.Context(), k, ""))
			t.granted("a record to be", p.try(k, a), 1)
			t.ok("keep", p.keep(k, a, "answer"))
			a = store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("a waiter", p.queue(k, w), 0)
			t.waits("another waiter", p.queue(k, last), 1)
			t.count("force release of another ID", 0)(release(t.Context(), k, b.ID()))
			t.ok("the holder's renewal", p.renew(k, a, long))
			t.count("force release of the holder", 1)(release(t.Context(), k, a.ID()))
			t.lost("the holder's renewal", p.renew(k, a, long))
			t.lost("the holder's record", p.keep(k, a, "late"))
			t.state("another caller", p.try(k, store.NewToken()), store.Held)
			t.state("the other waiter", p.queue(k, last), store.Held)
			t.granted("the waiter", p.queue(k, w), 1)
			t.waits("the other waiter, now the next", p.queue(k, last), 0)
			t.done("the record", p.look(k, answerable), "answer")

			k = key("two")
			t.granted("one of two", p.try(k, a, permits(2)), 1)
			t.granted("two of two", p.try(k, b, permits(2)), 1)
			t.count("force release of one", 1)(release(t.Context(), k, a.ID()))
			t.ok("the other's renewal", p.renew(k, b, long))
			t.granted("its successor", p.try(k, w, permits(2)), 1)
			t.count("force release of all", 2)(release(t.Context(), k, ""))
			t.lost("the other's renewal", p.renew(k, b, long))

			k = key("job")
			t.waits("reserving", p.reserve(k, w), 0)
			t.granted("its worker", p.try(k, a, from(w)), 1)
			t.count("force release", 1)(release(t.Context(), k, a.ID()))
			t.lost("giving its place up", p.release(k, w))

			k = key("abandoned")
			t.granted("a caller that abandons", p.try(k, a, asked("this")), 1)
			t.ok("abandon", p.abandon(k, a))
			t.count("force release", 1)(release(t.Context(), k, a.ID()))
			t.granted("the next", p.try(k, store.NewToken(), asked("that")), 1)
		}).needs(Inspector),
	property("ForceReleaseServesTheNext",
		"A lease that an operator ends frees the key as a settlement does: the next waiter is woken in the same step.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			for _, name := range []string{"force release", "force release the unknown", "forget the unknown", "resolve"} {
				k, a, b := key(name), store.NewToken(), store.NewToken()
				wakes.ready(k)
				last := t.granted("the holder", p.try(k, a, func(c *store.Claim) { c.AtMostOnce = name != "force release" }), 1)
				t.waits("a waiter", q.queue(k, b), 0)
				if name != "force release" {
					t.ok("abandon", p.abandon(k, a))
					t.unknown("another caller", p.try(k, store.NewToken()), a)
				}
				switch name {
				case "force release", "force release the unknown":
					t.count(name, 1)(p.inspect().ForceRelease(t.Context(), k, ""))
				case "forget the unknown":
					t.report(name, true)(p.inspect().Forget(t.Context(), k, ""))
				case "resolve":
					t.report(name, true)(p.inspect().Resolve(t.Context(), k, "", nil, long))
				}
				wakes.turn("the waiter, after "+name, k, b, last, 1)
			}
		}).needs(Inspector, Notifier),
	property("ForgetLetsTheNextRun",
		"An operator who wants a request to run again deletes what is known about it. Live leases and waiters stay.", func(t *Trial) {
			p, q := t.process(), t.process()
			forget := func(ctx context.Context, k store.Key) (bool, error) { return q.inspect().Forget(ctx, k, "") }
			k, a, b, w := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.report("forgetting nothing", false)(forget(t.Context(), k))
			t.granted("the claim", p.try(k, a, answerable, asked("this")), 1)
			t.ok("keep", p.keep(k, a, "answer"))
			t.report("forgetting the record", true)(forget(t.Context(), k))
			t.report("forgetting it again", false)(forget(t.Context(), k))
			t.granted("the next", p.try(k, b, answerable, asked("that")), 1)
			t.ok("abandon", p.abandon(k, b))
			t.report("forgetting the abandoned", true)(forget(t.Context(), k))
			b = store.NewToken()
			t.granted("the next", p.try(k, b, answerable, asked("this")), 1)
			t.waits("a waiter", p.queue(k, w, answerable), 0)
			t.report("forgetting a live lease", false)(forget(t.Context(), k))
			t.ok("its renewal", p.renew(k, b, long))
			t.ok("its release", p.release(k, b))
			t.granted("the waiter", p.queue(k, w, answerable), 1)
		}).needs(Inspector),
	property("ForgetNamesTheAttempt",
		"The ID names what the operator looked at. What has come meanwhile is not forgotten by mistake: an unknown outcome would run twice.", func(t *Trial) {
			p, q := t.process(), t.process()
			forget := func(k store.Key, id string) (bool, error) { return q.inspect().Forget(t.Context(), k, id) }
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.granted("the claim", p.try(k, a, answerable, asked("this")), 1)
			t.report("forgetting a live lease, by ID", false)(forget(k, a.ID()))
			t.ok("keep", p.keep(k, a, "answer"))
			t.report("forgetting another attempt", false)(forget(k, store.NewToken().ID()))
			t.done("a claim after that", p.try(k, store.NewToken(), answerable, asked("this")), "answer")
			t.granted("a claim that no record answers", p.try(k, b, asked("this"), atMostOnce), 1)
			t.ok("abandon", p.abandon(k, b))
			t.report("forgetting the record, by its ID", true)(forget(k, a.ID()))
			t.report("forgetting the record again", false)(forget(k, a.ID()))
			t.unknown("a claim after that", p.try(k, store.NewToken(), answerable, asked("this"), atMostOnce), b)
			t.report("forgetting the unknown, by its ID", true)(forget(k, b.ID()))
			t.granted("the next", p.try(k, a, answerable, asked("that")), 1)

			k, a, b = key("both"), store.NewToken(), store.NewToken()
			t.granted("the claim", p.try(k, a, answerable, asked("this")), 1)
			t.ok("keep", p.keep(k, a, "answer"))
			t.granted("a claim that no record answers", p.try(k, b, asked("this")), 1)
			t.ok("abandon", p.abandon(k, b))
			t.report("forgetting the abandoned, by its ID", true)(forget(k, b.ID()))
			t.done("a claim after that", p.try(k, store.NewToken(), answerable, asked("this")), "answer")
		}).needs(Inspector),
}
