package storetest

import (
	"time"

	"github.com/dibs-go/dibs/store"
)

var unknownProperties = []Property{
	property("AtMostOnceBecomesUnknown",
		"Where to run twice is worse than not to run, no caller is granted after a crash or an Abandon until an operator has found out what happened.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a, answerable, atMostOnce, ttl(t.short())), 1)
			t.outlast(t.short())
			for _, p := range []*process{p, q, p} {
				for _, mode := range []store.Mode{store.Try, store.Queue, store.Look} {
					c := lock(k, store.NewToken(), answerable)
					c.Mode = mode
					t.unknown("a claim after the lease expired", p.claim(c), a)
				}
				t.lost("keep by the late holder", p.keep(k, a, "late"))
				t.lost("renew by the late holder", p.renew(k, a, long))
			}
			t.unknown("the late holder, asking again", p.try(k, a, answerable, atMostOnce), a)

			k, job, w := key("abandoned"), store.NewToken(), store.NewToken()
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("a worker", p.try(k, a, atMostOnce, from(job)), 1)
			t.waits("a waiter", q.queue(k, w, atMostOnce), 0)
			t.ok("abandon", p.abandon(k, a))
			t.unknown("the waiter", q.queue(k, w, atMostOnce), a)
			t.unknown("the next worker", q.try(k, store.NewToken(), from(job)), a)
			t.ok("giving the place up, which still exists", p.release(k, job))
		}),
	property("AtMostOnceEndsCleanly",
		"AtMostOnce is about abandoned leases. A lease that is settled leaves its record, or nothing.", func(t *Trial) {
			p := t.process()
			a := store.NewToken()
			t.granted("one", p.try(key("released"), a, answerable, atMostOnce), 1)
			t.ok("release", p.release(key("released"), a))
			t.granted("the next", p.try(key("released"), store.NewToken(), answerable, atMostOnce), 1)
			t.granted("another", p.try(key("kept"), a, answerable, atMostOnce), 1)
			t.ok("keep", p.keep(key("kept"), a, "answer"))
			t.done("the next", p.try(key("kept"), store.NewToken(), answerable, atMostOnce), "answer")
		}),
	property("UnknownIsForEver",
		"Time does not show what happened. If an unknown outcome were forgotten one day, the work would run twice that day.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a, atMostOnce, ttl(t.short())), 1)
			time.Sleep(10 * 365 * 24 * time.Hour)
			t.unknown("a claim ten years later", p.try(k, store.NewToken()), a)
		}).needs(days),
	property("ForceReleaseAndForgetEndTheUnknown",
		"An operator who knows that nothing happened lets the next caller run.", func(t *Trial) {
			p := t.process()
			for name, end := range map[string]func(store.Key, store.Token){
				"force release": func(k store.Key, a store.Token) {
					t.count("force release by a wrong ID", 0)(p.inspect().ForceRelease(t.Context(), k, store.NewToken().ID()))
					t.unknown("a claim after that", p.try(k, store.NewToken()), a)
					t.count("force release by the right ID", 1)(p.inspect().ForceRelease(t.Context(), k, a.ID()))
				},
				"force release all": func(k store.Key, a store.Token) {
					t.count("force release", 1)(p.inspect().ForceRelease(t.Context(), k, ""))
				},
				"forget": func(k store.Key, a store.Token) {
					t.report("forget", true)(p.inspect().Forget(t.Context(), k, ""))
				},
			} {
				k, a := key(name), store.NewToken()
				t.granted("the claim", p.try(k, a, asked("this"), atMostOnce), 1)
				t.ok("abandon", p.abandon(k, a))
				end(k, a)
				t.granted("the next, asking something else", p.try(k, store.NewToken(), asked("that")), 1)
			}
		}).needs(Inspector),
	property("ResolveGivesTheRecord",
		"An operator who knows what happened writes the answer. The ID names the attempt that the operator looked into, so a later attempt is not resolved by mistake.", func(t *Trial) {
			p, q := t.process(), t.process()
			resolve := func(k store.Key, id string) (bool, error) {
				return q.inspect().Resolve(t.Context(), k, id, []byte("by hand"), long)
			}
			k, a := key("k"), store.NewToken()
			t.report("resolving a key that is free", false)(resolve(k, ""))
			t.granted("the claim", p.try(k, a, answerable, asked("this"), atMostOnce), 1)
			t.report("resolving a key that is held", false)(resolve(k, ""))
			t.report("resolving a key that is held, by ID", false)(resolve(k, a.ID()))
			t.ok("abandon", p.abandon(k, a))
			t.report("resolving another attempt", false)(resolve(k, store.NewToken().ID()))
			t.unknown("a claim after that", p.try(k, store.NewToken(), answerable), a)
			t.report("resolving the attempt", true)(resolve(k, a.ID()))
			t.done("a claim after that", p.try(k, store.NewToken(), answerable, asked("this")), "by hand")
			t.state("another request", p.try(k, store.NewToken(), answerable, asked("that")), store.Mismatch)
			t.report("resolving it again", false)(resolve(k, a.ID()))

			k = key("unnamed")
			t.granted("the claim", p.try(k, a, answerable, atMostOnce), 1)
			t.ok("abandon", p.abandon(k, a))
			t.report("resolving without an ID", true)(resolve(k, ""))
			t.done("a claim after that", p.try(k, store.NewToken(), answerable), "by hand")

			k = key("merely abandoned")
			t.granted("the claim", p.try(k, a), 1)
			t.ok("abandon", p.abandon(k, a))
			t.report("resolving it", false)(resolve(k, ""))
			t.granted("the next", p.try(k, store.NewToken()), 2)
		}).needs(Inspector),
}

// unknown fails the trial unless the answer is that the token's outcome is
// unknown.
func (t *Trial) unknown(what string, a store.Answer, token store.Token) {
	t.Helper()
	t.state(what, a, store.Unknown)
	if a.ID != token.ID() {
		t.Fatalf("%s: the unknown attempt is %q, want %q", what, a.ID, token.ID())
	}
}

// count returns a check of a number that a method of an Inspector returns.
func (t *Trial) count(what string, want int) func(int, error) {
	return func(got int, err error) {
		t.Helper()
		if err != nil || got != want {
			t.Fatalf("%s: %d, %v, want %d", what, got, err, want)
		}
	}
}

// report returns a check of what a method of an Inspector reports.
func (t *Trial) report(what string, want bool) func(bool, error) {
	return func(got bool, err error) {
		t.Helper()
		if err != nil || got != want {
			t.Fatalf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
}
