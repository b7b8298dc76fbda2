package storetest

import (
	"sync"
	"sync/atomic"
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

var fromProperties = []Property{
	property("FromAPlace",
		"Each attempt at a job is a claim with its own token, at the one place that was reserved for the job. Before its turn it tries or waits there.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, job, b, worker := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("a waiter", p.queue(k, b), 1)
			t.waits("the worker, before its turn", q.try(k, worker, from(job)), 0)
			t.waits("the worker, looking before its turn", q.look(k, from(job)), 0)
			t.lost("settling the worker, which tried", q.release(k, worker))
			t.ok("release", p.release(k, a))
			d := q.look(k, from(job))
			if t.state("the worker, looking", d, store.Free); !d.Queued {
				t.Fatal("the worker, looking: answered that its job's place does not exist")
			}
			t.state("another caller that looks", q.look(k), store.Held)
			fence := t.granted("the worker", q.try(k, worker, from(job)), 1)
			for _, r := range []*process{p, q} {
				t.keeps("the worker, asking again", r.try(k, worker, from(job)), fence)
			}
			t.ok("renew", q.renew(k, worker, long))
			t.lost("renew by the place's token", q.renew(k, job, long))
			t.waits("the waiter", p.queue(k, b), 0)
			t.ok("release", q.release(k, worker))
			t.granted("the waiter", p.queue(k, b), 1)
			t.lost("giving the place up after that", p.release(k, job))
			t.nowhere("a claim from the place after that", q.try(k, store.NewToken(), from(job)))
		}),
	property("WaiterStandsForItsPlace",
		"A worker that waits at its job's place has the place's number and its own PlaceTTL. The end of one of them leaves the other.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, job, b, worker := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("a waiter", p.queue(k, b), 1)
			t.waits("the worker", q.queue(k, worker, from(job)), 0)
			t.waits("the worker, for a short time", q.queue(k, worker, from(job), placeTTL(t.short())), 0)
			t.outlast(t.short())
			t.lost("settling the worker", q.release(k, worker))
			t.waits("the waiter, behind the place", p.queue(k, b), 1)
			t.waits("the worker, anew", q.queue(k, worker, from(job)), 0)
			t.ok("the worker gives up", q.release(k, worker))
			t.waits("the waiter, behind the place", p.queue(k, b), 1)
			t.waits("another worker", q.queue(k, worker, from(job)), 0)
			t.ok("the place is given up", p.release(k, job))
			t.waits("the waiter, behind the worker", p.queue(k, b), 1)
			t.waits("the worker, asking again", q.queue(k, worker, from(job)), 0)
			t.waits("the worker, trying", q.try(k, worker), 0)
			t.ok("release", p.release(k, a))
			t.state("the waiter", p.queue(k, b), store.Held)
			t.granted("the worker", q.queue(k, worker, from(job)), 1)
			t.waits("the waiter", p.queue(k, b), 0)
		}),
	property("OwnPlaceCounts",
		"A token has at most one place. If a token waits at the end and then claims from a place in front, it keeps its own place, and the other stays its job's.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, job, b := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("a caller that queues", q.queue(k, b), 1)
			t.waits("it, trying from the place", q.try(k, b, from(job)), 1)
			t.waits("it, queueing from the place", q.queue(k, b, from(job)), 1)
			t.ok("release", p.release(k, a))
			t.waits("it, when the place's turn has come", q.try(k, b, from(job)), 1)
			worker := store.NewToken()
			t.granted("the job's worker", p.try(k, worker, from(job)), 1)
			t.ok("its release", p.release(k, worker))
			t.granted("the caller that queued", q.queue(k, b), 1)
		}),
	property("FromNoPlace",
		"A place that expired, was given up or never existed changes nothing: the claim is an ordinary one.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, gone, a, b := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("a claim from a place that never was", q.try(k, a, from(store.NewToken())), 1)
			t.waits("reserving", p.reserve(k, gone), 0)
			t.waits("a waiter", p.queue(k, b), 1)
			t.waits("reserving for a short time", p.reserve(k, gone, placeTTL(t.short())), 0)
			t.outlast(t.short())
			late := store.NewToken()
			t.nowhere("a try from a place that has expired", q.try(k, late, from(gone)))
			t.lost("settling that claim", q.release(k, late))
			t.waits("a caller that queues from it", q.queue(k, late, from(gone)), 1)
			t.nowhere("a try from a waiter's place", q.try(k, store.NewToken(), from(b)))
			t.ok("release", q.release(k, a))
			t.granted("the waiter", p.queue(k, b), 1)
			t.ok("its release", p.release(k, b))
			t.granted("the caller that queued", q.queue(k, late, from(gone)), 1)
			t.nowhere("a try from a holder", p.try(k, store.NewToken(), from(late)))
		}),
	property("AnsweredFromAPlace",
		"A job does not run if a record answers it or the fingerprint differs. Its waiter's place is given up. The reserved place stays until the job's client gives it up.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, job, worker, b := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a, asked("this"), answerable), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("the worker", q.queue(k, worker, from(job), answerable), 0)
			t.waits("a waiter", p.queue(k, b), 1)
			t.ok("keep", p.keep(k, a, "answer"))
			t.done("the worker, looking", q.look(k, from(job), answerable), "answer")
			t.done("the worker", q.queue(k, worker, from(job), answerable), "answer")
			t.lost("settling the worker's place", q.release(k, worker))
			t.state("another that asks for something else", q.try(k, worker, from(job), answerable, asked("that")), store.Mismatch)
			t.waits("the waiter, behind the place", p.queue(k, b), 1)
			t.ok("giving the place up", p.release(k, job))
			t.granted("the waiter", p.queue(k, b), 1)
		}),
	property("OneLeaseAtANumberUnderLoad",
		"Of many claims from one place at the same moment, in many processes, one is granted, although the key has room for all.", func(t *Trial) {
			const callers = 12
			procs := []*process{t.process(), t.process(), t.process()}
			for round := range 8 {
				k, job := key("k"+itoa(round)), store.NewToken()
				t.waits("reserving", procs[0].reserve(k, job), 0)
				var granted, waiting atomic.Int64
				var running sync.WaitGroup
				for i := range callers {
					running.Go(func() {
						c := lock(k, store.NewToken(), from(job), permits(1+round%2*callers))
						c.Mode = []store.Mode{store.Try, store.Queue}[i%2]
						switch d := procs[i%len(procs)].claim(c); {
						case d.State == store.Granted:
							granted.Add(1)
						case d.State == store.Held && d.Queued:
							waiting.Add(1)
						}
					})
				}
				running.Wait()
				if granted.Load() != 1 || waiting.Load() != callers-1 {
					t.Fatalf("of %d that claim from one place %d were granted and %d wait", callers, granted.Load(), waiting.Load())
				}
			}
		}).heavy(),
	property("PlaceExpiresUnderItsLease",
		"A reserved place expires on time even while a worker holds a lease at it, and lasts longer if it is reserved again meanwhile. Only the job's queue decides how long.", func(t *Trial) {
			p, q := t.process(), t.process()
			ended, job, a := key("ended"), store.NewToken(), store.NewToken()
			t.waits("reserving", p.reserve(ended, job), 0)
			t.granted("the worker", q.try(ended, a, from(job)), 1)
			t.waits("reserving for a short time", p.reserve(ended, job, placeTTL(t.short())), 0)
			t.inTime("in time", func(k store.Key, d time.Duration) bool {
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the worker", q.try(k, a, from(job)), 1)
				before := time.Now()
				t.waits("reserving for a short time", p.reserve(k, job, placeTTL(d)), 0)
				again := p.reserve(k, job)
				if time.Since(before) >= d {
					return false
				}
				t.waits("reserving for long", again, 0)
				t.outlast(d)
				t.ok("the worker abandons", q.abandon(k, a))
				t.nowhere("another caller, behind the place", p.try(k, store.NewToken()))
				t.granted("the next worker", q.try(k, store.NewToken(), from(job)), 2)
				return true
			})
			t.outlast(t.short())
			t.nowhere("another worker, from the place that has expired", p.try(ended, store.NewToken(), from(job)))
			t.ok("the worker abandons", q.abandon(ended, a))
			t.granted("another caller", p.try(ended, store.NewToken()), 2)
		}),
}

// nowhere fails the trial unless the answer is Held, without a place.
func (t *Trial) nowhere(what string, a store.Answer) {
	t.Helper()
	if t.state(what, a, store.Held); a.Queued {
		t.Fatalf("%s: has a place in the queue, and was to have none", what)
	}
}
