package storetest

import (
	"github.com/dibs-go/dibs/store"
)

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
