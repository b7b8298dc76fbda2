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
