package storetest

import (
	"math"
	"time"

	"github.com/dibs-go/dibs/store"
)

var graceProperties = []Property{
	property("GraceEndsWithItsPlaces",
		"A key was idle because of a place that has ended. The next place has its own count, which begins with the first claim that it refuses, even if the end and the new place are one step.", func(t *Trial) {
			p := t.process()
			for name, first := range map[string]struct {
				placeTTL, grace time.Duration
				end             func(k store.Key, place store.Token)
			}{
				"its Grace is over":    {long, t.short(), func(store.Key, store.Token) { t.outlast(t.short()) }},
				"its PlaceTTL is over": {t.short(), long, func(store.Key, store.Token) { t.outlast(t.short()) }},
				"it is given up":       {long, long, func(k store.Key, place store.Token) { t.ok("giving it up", p.release(k, place)) }},
			} {
				k, place, next := key(name), store.NewToken(), store.NewToken()
				t.state("a place", p.reserve(k, place, placeTTL(first.placeTTL), grace(first.grace)), store.Held)
				p.try(k, store.NewToken()) // refused, unless the place has ended by now
				first.end(k, place)
				t.waits("the next place", p.reserve(k, next, grace(t.short())), 0)
				t.outlast(t.short())
				t.state("the first claim that it refuses", p.try(k, store.NewToken()), store.Held)
			}
		}),
	property("GraceCountsFromTheFirstRefusal",
		"A cancelled job never uses its place, which must not block the key for as long as a place may last. Grace counts only from the first claim that is refused because of the place, so a job that is late while no other claim wants the key loses nothing.", func(t *Trial) {
			p, q := t.process(), t.process()
			trying, queueing, job, b := key("trying"), key("queueing"), store.NewToken(), store.NewToken()
			t.waits("reserving", p.reserve(trying, job, grace(t.short())), 0)
			t.waits("reserving", p.reserve(queueing, job, grace(t.short())), 0)
			t.outlast(t.short())

			before := time.Now()
			t.nowhere("the first that tries", q.try(trying, store.NewToken()))
			after := time.Now()
			t.waits("the first that queues", q.queue(queueing, b), 1)
			t.freed("the place", before, after, t.short(), p, trying)
			t.lost("giving the place up after that", p.release(trying, job))
			t.nowhere("the job, too late", q.try(trying, store.NewToken(), from(job)))

			t.outlast(t.short())
			t.state("another caller, when the waiter's turn has come", p.try(queueing, store.NewToken()), store.Held)
			t.granted("the waiter", q.queue(queueing, b), 1)
		}),
	property("GraceNeedsARefusedClaim",
		"After a night without workers the first job of each key must still have its place. A Look, a Reserve, or a claim that is refused for another reason does not start the count.", func(t *Trial) {
			p, q := t.process(), t.process()
			job, other, worker := store.NewToken(), store.NewToken(), store.NewToken()
			asks := map[string]func(store.Key){
				"none":              func(store.Key) {},
				"a look":            func(k store.Key) { t.state("a look", p.look(k), store.Held) },
				"reserving again":   func(k store.Key) { t.waits("reserving again", p.reserve(k, job, grace(t.short())), 0) },
				"reserving another": func(k store.Key) { t.waits("reserving another", p.reserve(k, other), 1) },
				"a claim that another place kept from it": func(k store.Key) {
					t.ok("giving the place up", p.release(k, job))
					t.waits("reserving another", p.reserve(k, other), 0)
					t.nowhere("another caller", p.try(k, store.NewToken()))
					t.ok("giving the other up", p.release(k, other))
					t.waits("reserving, when there is no place", p.reserve(k, job, grace(t.short())), 0)
				},
				"a claim from a place whose lease is live": func(k store.Key) {
					t.ok("giving the place up", p.release(k, job))
					t.waits("reserving another", p.reserve(k, other), 0)
					t.granted("its worker", q.try(k, store.NewToken(), from(other), permits(2)), 1)
					t.waits("reserving", p.reserve(k, job, grace(t.short())), 0)
					t.waits("its other worker", q.try(k, store.NewToken(), from(other), permits(2)), 0)
					t.waits("its other worker, waiting", q.queue(k, store.NewToken(), from(other), permits(2)), 0)
				},
				"one behind a worker that waits": func(k store.Key) {
					t.granted("the job's first worker", q.try(k, worker, from(job)), 1)
					t.waits("its second worker", q.queue(k, other, from(job)), 0)
					t.ok("the first abandons", q.abandon(k, worker))
					t.nowhere("another caller", p.try(k, store.NewToken()))
					t.outlast(t.short())
					t.ok("the second worker gives up", q.release(k, other))
				},
			}
			for name, ask := range asks {
				t.waits("reserving", p.reserve(key(name), job, grace(t.short())), 0)
				ask(key(name))
			}
			t.outlast(t.short())
			for name := range asks {
				d := p.try(key(name), store.NewToken(), permits(2))
				t.nowhere("the first that tries, after "+name, d)
			}
		}),
	property("GraceNeedsRoom",
		"While others hold the key, the place keeps no claim from it. The count begins when a claim would have room.", func(t *Trial) {
			p, q := t.process(), t.process()
			job, as := store.NewToken(), tokens(2)
			type full struct {
				n     int
				edits []edit
			}
			cases := map[string]full{
				"a mutex":       {1, nil},
				"a semaphore":   {2, []edit{permits(2)}},
				"other permits": {1, []edit{permits(3)}},
				"a weight":      {1, []edit{permits(2), weight(2)}},
			}
			for name, c := range cases {
				k := key(name)
				for _, a := range as[:c.n] {
					t.granted("a holder", p.try(k, a, permits(min(c.n, 2))), 1)
				}
				t.waits("reserving", p.reserve(k, job, grace(t.short())), 0)
				t.nowhere("another caller, "+name, q.try(k, store.NewToken(), c.edits...))
				t.waits("a waiter, "+name, q.queue(k, store.NewToken(), c.edits...), 1)
			}
			free := key("a free permit")
			t.granted("a holder", p.try(free, as[0], permits(2)), 1)
			t.waits("reserving", p.reserve(free, job, grace(t.short())), 0)
			t.nowhere("another caller", q.try(free, store.NewToken(), permits(2)))

			t.outlast(t.short())
			t.granted("another caller, when the place has ended", q.try(free, as[1], permits(2)), 1)
			for name, c := range cases {
				k := key(name)
				for _, a := range as[:c.n] {
					t.ok("release", p.release(k, a))
				}
				t.granted("the job, in its turn, "+name, q.try(k, store.NewToken(), from(job)), 1)
				t.ok("giving the place up, which still exists", p.release(k, job))
			}
		}),
	property("GraceIsNoLongerThanThePlace",
		"A place expires on time, whatever its Grace. A place without a Grace blocks for as long as it lasts. A Grace that is too short for the backend's clock is still a Grace.", func(t *Trial) {
			p, q := t.process(), t.process()
			none, ending, shortest, endless, job := key("none"), key("ending"), key("shortest"), key("endless"), store.NewToken()
			for k, edits := range map[store.Key][]edit{
				none:     nil,
				ending:   {grace(math.MaxInt64)},
				shortest: {grace(1)},
				endless:  {grace(t.short()), placeTTL(math.MaxInt64)},
			} {
				t.waits("reserving", p.reserve(k, job, edits...), 0)
				t.nowhere("another caller, "+k.Name, q.try(k, store.NewToken()))
			}
			t.waits("reserving for a short time", p.reserve(ending, job, placeTTL(t.short()), grace(math.MaxInt64)), 0)
			t.outlast(t.short())
			t.nowhere("another caller, after a place without a Grace", q.try(none, store.NewToken()))
			for _, k := range []store.Key{ending, shortest, endless} {
				t.granted("another caller, "+k.Name, q.try(k, store.NewToken()), 1)
			}
		}),
	property("ReservingStartsTheGraceAnew",
		"A job that will be tried again later reserves its place again with a new Grace, which counts from then. The time before does not count any more.", func(t *Trial) {
			p, q := t.process(), t.process()
			longer, none, job := key("longer"), key("none"), store.NewToken()
			for _, k := range []store.Key{longer, none} {
				t.waits("reserving", p.reserve(k, job, grace(t.short())), 0)
				t.nowhere("another caller", q.try(k, store.NewToken()))
			}
			t.waits("reserving with a longer Grace", p.reserve(longer, job, grace(long)), 0)
			t.waits("reserving with none", p.reserve(none, job), 0)
			t.outlast(t.short())
			t.nowhere("another caller, before the longer Grace's end", q.try(longer, store.NewToken()))
			t.nowhere("another caller, without a Grace", q.try(none, store.NewToken()))

			before := time.Now()
			t.waits("reserving with a shorter Grace", p.reserve(longer, job, grace(t.short())), 0)
			t.freed("the place with a shorter Grace", before, time.Now(), t.short(), p, longer)

			t.inTime("same", func(k store.Key, d time.Duration) bool {
				t.waits("reserving", p.reserve(k, job, grace(d)), 0)
				t.nowhere("another caller", q.try(k, store.NewToken()))
				t.outlast(d)
				before := time.Now() // the place has ended, and Reserve makes a new one
				t.waits("reserving again", q.reserve(k, job, grace(d)), 0)
				other := q.try(k, store.NewToken())
				if time.Since(before) >= d {
					return false
				}
				t.nowhere("another caller", other)
				t.freed("the place", before, time.Now(), d, p, k)
				return true
			})
		}),
	property("GrantStartsTheCountAnew",
		"When a worker dies, its queue needs time to give the job to another worker. So after a grant the place has its whole Grace again.", func(t *Trial) {
			p, q := t.process(), t.process()
			job := store.NewToken()
			for name, end := range map[string]func(store.Key, store.Token) error{
				"abandoned": q.abandon, "undone": q.undo,
				"expired": func(k store.Key, a store.Token) error { return q.renew(k, a, t.short()) },
			} {
				t.inTime(name, func(k store.Key, d time.Duration) bool {
					a := store.NewToken()
					t.waits("reserving", p.reserve(k, job, grace(d)), 0)
					before := time.Now()
					t.nowhere("another caller", p.try(k, store.NewToken()))
					worker := q.try(k, a, from(job))
					if time.Since(before) >= d {
						return false
					}
					t.granted("the worker", worker, 1)
					t.nowhere("another caller, while it works", p.try(k, store.NewToken()))
					t.ok(name, end(k, a))
					t.outlast(t.short() + d) // even if the lease expires
					before = time.Now()
					t.nowhere("another caller, after the lease was "+name, p.try(k, store.NewToken()))
					t.freed("the place of the lease that was "+name, before, time.Now(), d, p, k)
					return true
				})
			}
		}),
	property("ClaimSetsTheGrace",
		"A worker that is granted at a reserved place sets how long the place may block if the worker dies. That is not the time that the job had before its first start.", func(t *Trial) {
			p, q := t.process(), t.process()
			set, kept, refused, job, a := key("set"), key("kept"), key("refused"), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(refused, a), 1)
			t.waits("reserving", p.reserve(refused, job, grace(long)), 0)
			t.waits("a worker that is refused", q.try(refused, store.NewToken(), from(job), grace(t.short())), 0)
			t.ok("release", p.release(refused, a))
			t.state("a worker that looks", q.look(refused, from(job), grace(t.short())), store.Free)
			t.nowhere("another caller", q.try(refused, store.NewToken()))

			t.waits("reserving", p.reserve(set, job, grace(long)), 0)
			t.granted("the worker", q.queue(set, a, from(job), grace(t.short())), 1)
			t.waits("reserving", p.reserve(kept, job, grace(t.short())), 0)
			t.granted("the worker without a Grace", q.try(kept, a, from(job)), 1)
			for _, k := range []store.Key{set, kept} {
				t.ok("abandon", q.abandon(k, a))
				before := time.Now()
				t.nowhere("another caller", p.try(k, store.NewToken()))
				t.freed("the place whose Grace was "+k.Name, before, time.Now(), t.short(), p, k)
			}
			t.nowhere("another caller, after a Grace that was not set", q.try(refused, store.NewToken()))
		}),
	property("UnusedPlacesCostOneGrace",
		"If a thousand jobs of a key were cancelled, the job behind them waits for one Grace and not for a thousand, because the key counts once.", func(t *Trial) {
			const n = 100
			p, q := t.process(), t.process()
			k, last := key("k"), store.NewToken()
			claims := make([]store.Claim, n)
			for i, job := range tokens(n) {
				claims[i] = lock(k, job, grace(t.short()))
				claims[i].Mode = store.Reserve
			}
			p.claims(claims...)
			t.waits("reserving the last", p.reserve(k, last), n)
			before := time.Now()
			t.waits("the last", q.try(k, store.NewToken(), from(last)), n)
			t.freed("all places", before, time.Now(), t.short(), q, k, from(last))
		}),
}

// freed polls until the key is not held. A reserved place keeps it from a moment between before
// and after. The trial fails unless the key is free d after that moment.
func (t *Trial) freed(what string, before, after time.Time, d time.Duration, p *process, k store.Key, edits ...edit) {
	t.Helper()
	t.ends(what, before, after, d, func() bool { return p.try(k, store.NewToken(), edits...).State != store.Held })
}
