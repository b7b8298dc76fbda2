package storetest

import (
	"time"

	"github.com/dibs-go/dibs/store"
)

var abandonedProperties = []Property{
	property("AbandonedTogetherCountInOrder",
		"Several leases of a key expire before a call notices. The next holder gets what the last of them saved: of the lease that ended last, and of leases that ended together, the one that was granted last.", func(t *Trial) {
			p := t.process()
			for _, name := range []string{"one after the other", "together"} {
				k, gone, a, b := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				for n, token := range []store.Token{gone, a, b} {
					t.granted("holder "+itoa(n), p.try(k, token, permits(3)), 1)
				}
				t.ok("release", p.release(k, gone))
				want, last := "a", 2*t.short()
				if name == "together" {
					want, last = "b", t.short()
					for _, err := range p.renewals(
						store.Renewal{Key: k, Token: a, TTL: last, Progress: []byte("a")}, store.Renewal{Key: k, Token: b, TTL: last, Progress: []byte("b")},
					) {
						t.ok("progress", err)
					}
				} else {
					t.ok("progress", p.save(k, b, t.short(), "b"))
					t.ok("progress", p.save(k, a, last, "a"))
				}
				t.outlast(last)
				t.handed("the next", p.try(k, store.NewToken(), permits(3)), 3, want)
			}
		}),
	property("AbandonmentIsCounted",
		"The next holder must know that the last one did not finish, and how often that happened. It can then check what was done, and give up work that kills its worker.", func(t *Trial) {
			p, q := t.process(), t.process()
			k := key("k")
			for attempt := range 3 {
				t.granted("a holder that dies", p.try(k, store.NewToken(), ttl(t.short())), attempt+1)
				t.outlast(t.short())
			}
			a := store.NewToken()
			t.granted("a caller that finishes", q.try(k, a), 4)
			t.granted("the same, asking again", q.try(k, a), 4)
			t.ok("its end", q.release(k, a))
			t.granted("the next", p.try(k, store.NewToken()), 1)
		}),
	property("ProgressIsHandedOn",
		"A holder saves its progress, and the next holder continues from there. The store returns the last progress whole, up to a mebibyte, and only if its holder did not finish.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.handed("the first", p.try(k, a), 1, "")
			half := randomBytes(store.MaxProgress)
			t.ok("progress", p.save(k, a, long, "a quarter"))
			t.ok("more progress", p.save(k, a, long, half))
			t.ok("a renewal without progress", p.renew(k, a, t.short()))
			t.outlast(t.short())
			for range 2 {
				t.handed("the second", q.try(k, b), 2, half)
			}
			t.ok("release", q.release(k, b))
			t.handed("the third", q.try(k, store.NewToken()), 1, "")
		}),
	property("ProgressIsPassedOn",
		"A holder that dies before it saves anything must not erase the progress of the one before it. The next holder gets that progress, however many died in between.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the first", p.try(k, a), 1)
			t.ok("progress", p.save(k, a, long, "half"))
			t.ok("abandon", p.abandon(k, a))
			for attempt := 2; attempt < 5; attempt++ {
				b, lasting := store.NewToken(), long
				if attempt%2 == 0 {
					lasting = t.short()
				}
				t.handed("a holder that saves nothing", q.try(k, b, ttl(lasting)), attempt, "half")
				if attempt%2 == 0 {
					t.outlast(t.short())
				} else {
					t.ok("abandon", q.abandon(k, b))
				}
			}
			b := store.NewToken()
			t.handed("a caller that saves", p.try(k, b), 5, "half")
			t.ok("its progress", p.save(k, b, long, "most"))
			t.ok("abandon", p.abandon(k, b))
			if d := p.try(k, store.NewToken()); string(d.Progress) != "most" {
				t.Fatalf("attempt 6 got the progress %q, want %q", d.Progress, "most")
			}
		}),
	property("CleanEndForgets",
		"Attempts and progress count only for holders that failed in a row. After a clean end, with or without a record, the next holder begins anew.", func(t *Trial) {
			p := t.process()
			for name, end := range map[string]func(store.Key, store.Token) error{
				"release": p.release,
				"keep":    func(k store.Key, a store.Token) error { return p.keep(k, a, "answer") },
			} {
				k, a, b := key(name), store.NewToken(), store.NewToken()
				t.granted("the first", p.try(k, a, asked("this")), 1)
				t.ok("progress", p.save(k, a, long, "half"))
				t.ok("abandon", p.abandon(k, a))
				t.lost("renew after that", p.renew(k, a, long))
				t.lost("abandon again", p.abandon(k, a))
				t.granted("the second", p.try(k, b, asked("this")), 2)
				t.ok("more progress", p.save(k, b, long, "most"))
				t.ok(name, end(k, b))
				t.handed("the third", p.try(k, store.NewToken(), asked("that")), 1, "")
			}
		}),
	property("AbandonedLeasesAreOneRow",
		"With several permits, some holders die while others work. Each new holder gets the count of all leases that were abandoned since the last clean end.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, as := key("k"), tokens(6)
			try := func(i, attempt int, progress string) {
				t.Helper()
				t.handed("holder "+itoa(i), q.try(k, as[i], permits(2)), attempt, progress)
			}
			try(0, 1, "")
			try(1, 1, "")
			t.ok("progress", p.save(k, as[1], long, "half"))
			t.ok("abandon", p.abandon(k, as[1]))
			try(2, 2, "half")
			t.ok("undo", q.undo(k, as[2]))
			try(3, 2, "half")
			t.ok("abandon", p.abandon(k, as[3]))
			try(4, 3, "half")
			t.ok("abandon by the first", p.abandon(k, as[0]))
			t.ok("a good end", p.release(k, as[4]))
			try(5, 1, "")
		}),
	property("AbandonmentIsRemembered",
		"Work that dies once a day must be noticed, too. The store remembers an abandoned lease for at least dibs.AbandonedRetention.", func(t *Trial) {
			p := t.process()
			k := key("k")
			t.granted("the first", p.try(k, store.NewToken(), ttl(t.short())), 1)
			time.Sleep(t.short() + store.AbandonedRetention - time.Minute)
			t.granted("the second", p.try(k, store.NewToken()), 2)
		}).needs(days),
}

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

var undoProperties = []Property{
	property("UndoneAsIfNotGranted",
		"A claim whose caller stopped waiting is undone. The next holder still gets the count and the progress of the abandoned leases. Otherwise a cancelled context would restart the work.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.granted("the first", p.try(k, a, asked("this")), 1)
			t.ok("progress", p.save(k, a, long, "half"))
			t.ok("abandon", p.abandon(k, a))
			for range 3 {
				t.handed("a caller that goes away", q.try(k, b, asked("this")), 2, "half")
				t.ok("more progress", q.save(k, b, long, "none"))
				t.ok("undo", q.undo(k, b))
				t.lost("undo again", q.undo(k, b))
				t.lost("renew after it", q.renew(k, b, long))
				t.lost("keep after it", q.keep(k, b, "late"))
				t.state("something else", p.try(k, store.NewToken(), asked("that")), store.Mismatch)
				b = store.NewToken()
			}
			t.handed("a caller that works", q.try(k, b, asked("this")), 2, "half")
			t.ok("more progress", q.save(k, b, long, "most"))
			t.ok("abandon", q.abandon(k, b))
			if d := p.try(k, store.NewToken(), asked("this")); string(d.Progress) != "most" || d.Attempt != 3 {
				t.Fatalf("attempt %d got the progress %q, want attempt 3 and %q", d.Attempt, d.Progress, "most")
			}
		}),
	property("UndoneLeavesNothing",
		"An undone grant leaves nothing: no attempt, no progress, no fingerprint, no unknown outcome, and the record is as before.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b, c := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the record's", p.try(k, a, answerable), 1)
			t.ok("keep", p.keep(k, a, "answer"))
			t.granted("a caller that goes away", p.try(k, b, asked("this"), atMostOnce), 1)
			t.ok("progress", p.save(k, b, long, "half"))
			t.waits("a waiter", q.queue(k, c, asked("this")), 0)
			t.ok("undo", p.undo(k, b))
			t.state("another caller, meanwhile", p.try(k, store.NewToken(), asked("this")), store.Held)
			t.handed("the waiter", q.queue(k, c, asked("this")), 1, "")
			t.ok("undo", q.undo(k, c))
			t.granted("a caller that asks for something else", p.try(k, a, asked("that")), 1)
			t.ok("release", p.release(k, a))
			t.done("a caller that accepts the record", p.try(k, store.NewToken(), answerable), "answer")
		}),
}
