package storetest

import "github.com/dibs-go/dibs/store"

var fingerprintProperties = []Property{
	property("MismatchWhileRunning",
		"A key that is reused for something else while its first use runs is a caller's mistake. To wait would only lead to the wrong answer.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), store.NewToken()
			fence := t.granted("the first", p.try(k, a, answerable, asked("this")), 1)
			for _, mode := range []store.Mode{store.Try, store.Queue, store.Look} {
				c := lock(k, store.NewToken(), answerable, asked("that"))
				c.Mode = mode
				t.state("another request", q.claim(c), store.Mismatch)
				c.Fingerprint = printOf("this")
				t.state("the same request", q.claim(c), store.Held)
				if mode == store.Queue {
					t.ok("it gives up", q.release(k, c.Token))
				}
			}
			t.keeps("the first, asking again", p.try(k, a, answerable, asked("this")), fence)
			t.ok("the first's renewal", p.renew(k, a, long))
			t.ok("the first's record", p.keep(k, a, "answer"))
			t.done("the same request", q.try(k, store.NewToken(), answerable, asked("this")), "answer")
		}),
	property("MismatchAfterAbandonment",
		"Work that was started under a key and abandoned may have taken effect. Only the same request may continue it.", func(t *Trial) {
			p := t.process()
			for name, end := range map[string]func(store.Key, store.Token){
				"settled so": func(k store.Key, a store.Token) { t.ok("abandon", p.abandon(k, a)) },
				"expired": func(k store.Key, a store.Token) {
					t.ok("the last renewal", p.renew(k, a, t.short()))
					t.outlast(t.short())
				},
			} {
				k, a := key(name), store.NewToken()
				t.granted("the first", p.try(k, a, answerable, asked("this")), 1)
				end(k, a)
				t.state("another request", p.try(k, store.NewToken(), answerable, asked("that")), store.Mismatch)
				t.granted("the same request", p.try(k, store.NewToken(), answerable, asked("this")), 2)
			}
			k, a := key("unknown"), store.NewToken()
			t.granted("a caller that must not run twice", p.try(k, a, asked("this"), atMostOnce), 1)
			t.ok("abandon", p.abandon(k, a))
			t.state("another request", p.try(k, store.NewToken(), asked("that")), store.Mismatch)
			t.unknown("the same request", p.try(k, store.NewToken(), asked("this")), a)
		}),
	property("NoFingerprintNeverDiffers",
		"Locks have no fingerprint. A claim without one matches every key, and a key without one matches every claim.", func(t *Trial) {
			p := t.process()
			k, a, b := key("asked"), store.NewToken(), store.NewToken()
			t.granted("a caller that asks something", p.try(k, a, answerable, asked("this")), 1)
			t.state("a caller that asks nothing, while it runs", p.try(k, store.NewToken(), answerable), store.Held)
			t.ok("keep", p.keep(k, a, "answer"))
			t.done("a caller that asks nothing, when it is done", p.try(k, store.NewToken(), answerable), "answer")

			k = key("unasked")
			t.granted("a caller that asks nothing", p.try(k, b, answerable), 1)
			t.state("a caller that asks something, while it runs", p.try(k, store.NewToken(), answerable, asked("this")), store.Held)
			t.ok("keep", p.keep(k, b, "answer"))
			t.done("a caller that asks something, when it is done", p.try(k, store.NewToken(), answerable, asked("this")), "answer")
		}),
}
