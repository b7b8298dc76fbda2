package storetest

import (
	"time"

	"github.com/dibs-go/dibs/store"
)

var reserveProperties = []Property{
	property("ReservedPlaceBlocks",
		"A job's place is taken when it is enqueued. Until the job runs, no later claim may pass it, although the key has no holder. The place itself is never granted, because no worker is there.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, job, b, a := key("free"), store.NewToken(), store.NewToken(), store.NewToken()
			t.waits("reserving a free key", p.reserve(k, job), 0)
			t.waits("reserving it again", q.reserve(k, job), 0)
			t.state("another caller that tries", q.try(k, store.NewToken()), store.Held)
			t.state("another caller that looks", q.look(k), store.Held)
			t.waits("another caller that queues", q.queue(k, b), 1)
			t.outlast(t.turn)
			t.waits("the other caller, after longer than a turn", q.queue(k, b), 1)
			t.granted("the job's worker, in another process", q.try(k, a, from(job)), 1)
			t.waits("the other caller", q.queue(k, b), 0)
			t.ok("the job's end", p.release(k, a))
			t.granted("the other caller", q.queue(k, b), 1)

			k, a = key("held"), store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("a waiter", q.queue(k, b), 1)
			t.ok("release", p.release(k, a))
			t.waits("reserving again, when its turn has come", p.reserve(k, job), 0)
			t.outlast(t.turn)
			t.state("another caller, after longer than a turn", q.try(k, store.NewToken()), store.Held)
			t.waits("the waiter", q.queue(k, b), 1)
			t.lost("renew by the place's token", p.renew(k, job, long))
			t.granted("the job's worker", q.queue(k, store.NewToken(), from(job)), 1)
		}).pushedEnds(),
	property("ReservedPlacesKeepTheOrder",
		"Reserved places and waiters are one queue. A claim from a place has the place's number.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, ws, jobs := key("k"), tokens(5), tokens(5)
			reserved := func(i int) bool { return i%2 == 0 }
			claim := func(i int, mode store.Mode) store.Answer {
				c := lock(k, ws[i])
				if c.Mode = mode; reserved(i) {
					c.From = jobs[i]
				}
				return q.claim(c)
			}
			for i := range ws {
				if reserved(i) {
					t.waits("reserving number "+itoa(i), p.reserve(k, jobs[i]), i)
				} else {
					t.waits("number "+itoa(i), claim(i, store.Queue), i)
				}
			}
			t.waits("number 4, claiming too early", claim(4, store.Try), 4)
			t.waits("number 2, queueing too early", claim(2, store.Queue), 2)
			t.waits("a caller that joins at the end", p.queue(k, store.NewToken()), 5)
			for i, w := range ws {
				if i+1 < len(ws) {
					t.waits("number "+itoa(i+1)+", before its turn", claim(i+1, store.Queue), 1)
				}
				t.granted("number "+itoa(i), claim(i, store.Queue), 1)
				if i+1 < len(ws) {
					t.waits("number "+itoa(i+1)+", next", claim(i+1, store.Queue), 0)
				}
				t.ok("its release", p.release(k, w))
			}
		}),
	property("ReservedPlaceExpires",
		"A job that never starts blocks the key no longer than its place lasts. To reserve it again prolongs that.", func(t *Trial) {
			p := t.process()
			t.inTime("prolonged", func(k store.Key, d time.Duration) bool {
				job, b := store.NewToken(), store.NewToken()
				before := time.Now()
				t.waits("reserving", p.reserve(k, job, placeTTL(d)), 0)
				again := p.reserve(k, job)
				if time.Since(before) >= d {
					return false
				}
				t.waits("reserving for longer", again, 0)
				t.waits("a waiter", p.queue(k, b), 1)
				t.outlast(d)
				t.waits("the waiter, after the first place's end", p.queue(k, b), 1)
				before = time.Now()
				t.waits("reserving for a short time", p.reserve(k, job, placeTTL(t.short())), 0)
				t.ends("the place", before, time.Now(), t.short(), func() bool {
					d := p.queue(k, b)
					if d.State == store.Held {
						return false
					}
					t.granted("the waiter", d, 1)
					return true
				})
				t.lost("settling the place", p.release(k, job))
				return true
			})
		}),
	property("ReservedPlaceIsGivenUp",
		"A job that is cancelled before it runs settles its token, and the waiters behind it are served in the same step.", func(t *Trial) {
			p, q := t.process(), t.process()
			for name, settle := range map[string]func(store.Key, store.Token) error{
				"release": q.release, "abandon": q.abandon, "undo": q.undo,
			} {
				k, job, b := key(name), store.NewToken(), store.NewToken()
				t.waits("reserving", p.reserve(k, job), 0)
				t.waits("a waiter", p.queue(k, b), 1)
				t.lost("keep by the place's token", q.keep(k, job, "answer"))
				t.waits("the waiter, behind the place that still exists", p.queue(k, b), 1)
				t.ok(name+" of the place", settle(k, job))
				t.lost(name+" of the place again", settle(k, job))
				t.state("another caller", q.try(k, store.NewToken()), store.Held)
				t.granted("the waiter", p.queue(k, b), 1)
			}
		}),
	property("GrantServesTheNext",
		"A key with several permits has one queue, too: a reserved place in front blocks those behind it, although permits are free. When its job is granted, as many waiters as there are permits are woken in the same step.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, job, b, c := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			t.granted("a holder", p.try(k, store.NewToken(), permits(4)), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("a waiter", q.queue(k, b, permits(4)), 1)
			t.waits("another waiter", q.queue(k, c, permits(4)), 2)
			t.nowhere("another caller", p.try(k, store.NewToken(), permits(4)))
			last := t.granted("the job's worker", p.try(k, store.NewToken(), from(job), permits(4)), 1)
			last, _ = wakes.turn("the waiter", k, b, last, 1, permits(4))
			wakes.turn("the other waiter", k, c, last, 1, permits(4))
			t.nowhere("another caller", p.try(k, store.NewToken(), permits(4)))
		}).needs(Notifier),
}
