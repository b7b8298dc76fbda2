package storetest

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs/store"
)

var queueProperties = []Property{
	property("FirstComeFirstServed",
		"Waiters are granted in the order in which they joined, in whatever process they wait. Otherwise a waiter can wait forever.", func(t *Trial) {
			procs := []*process{t.process(), t.process(), t.process()}
			k, a := key("k"), store.NewToken()
			t.granted("the holder", procs[0].try(k, a), 1)
			waiters := tokens(7)
			for i, w := range waiters {
				t.waits("waiter "+itoa(i)+" joins", procs[i%3].queue(k, w), i)
			}
			for i, w := range waiters { // asking again changes nothing
				t.waits("waiter "+itoa(i)+" asks again", procs[(i+1)%3].queue(k, w), i)
			}
			holder := a
			for i, w := range waiters {
				t.ok("release", procs[i%3].release(k, holder))
				for j, later := range waiters[i+1:] {
					t.state("waiter "+itoa(i+1+j), procs[j%3].queue(k, later), store.Held)
				}
				t.granted("waiter "+itoa(i), procs[i%3].queue(k, w), 1)
				for j, later := range waiters[i+1:] {
					t.waits("waiter "+itoa(i+1+j), procs[j%3].queue(k, later), j)
				}
				holder = w
			}
			t.ok("the last release", procs[0].release(k, holder))
			t.state("a look after that", procs[0].look(k), store.Free)
		}),
	property("NoOvertaking",
		"From the moment when it is free, the key belongs to the first waiter, even before that waiter knows it. A caller that asks at the right moment, or again and again, must not get it.", func(t *Trial) {
			p, q := t.process(), t.process()
			for name, end := range map[string]func(store.Key, store.Token) error{
				"release": p.release, "abandon": p.abandon, "undo": p.undo,
				"keep": func(k store.Key, a store.Token) error { return p.keep(k, a, "answer") },
			} {
				k, a, first, second, late := key(name), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
				t.granted("the holder", p.try(k, a), 1)
				t.waits("the first waiter", q.queue(k, first), 0)
				t.waits("the second waiter", p.queue(k, second), 1)
				t.waits("the first waiter, trying", p.try(k, first), 0)
				t.nowhere("another caller that tries", p.try(k, store.NewToken()))
				t.ok(name, end(k, a))
				t.state("another caller that looks at once", p.look(k), store.Held)
				t.nowhere("another caller that tries", p.try(k, store.NewToken()))
				t.state("another caller that queues", p.queue(k, late), store.Held)
				t.state("the second waiter", p.queue(k, second), store.Held)
				t.state("the second waiter, trying", p.try(k, second), store.Held)
				t.state("the first waiter", q.queue(k, first), store.Granted)
				t.waits("the second waiter, now the next", p.try(k, second), 0)
				t.ok("the first one's release", q.release(k, first))
				t.granted("the second waiter, trying", p.try(k, second), 1)
				t.ok("its release", p.release(k, second))
				t.granted("the other caller that queued", p.queue(k, late), 1)
			}
		}),
	property("WaiterFollowsADeadHolder",
		"When a holder dies, its waiters are served as after a release: in order, without overtaking. The next holder learns that the lease was abandoned.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, first, second := key("k"), store.NewToken(), store.NewToken()
			a := store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("the first waiter", q.queue(k, first), 0)
			t.waits("the second waiter", p.queue(k, second), 1)
			t.ok("the last renewal", p.renew(k, a, t.short()))
			t.outlast(t.short())
			t.state("another caller", p.try(k, store.NewToken()), store.Held)
			t.state("the second waiter", p.queue(k, second), store.Held)
			t.granted("the first waiter", q.queue(k, first), 2)
			t.ok("its release", q.release(k, first))
			t.granted("the second waiter", p.queue(k, second), 1)
		}),
	property("DeadPlaceIsSkipped",
		"A dead waiter delays no one after its place has expired. A waiter that asks again in time keeps its place.", func(t *Trial) {
			p := t.process()
			t.inTime("prolonged", func(k store.Key, d time.Duration) bool {
				a, dead, alive, last := store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
				t.granted("the holder", p.try(k, a), 1)
				t.waits("a caller that will die", p.queue(k, dead), 0)
				before := time.Now()
				t.waits("a caller that will ask again", p.queue(k, alive, placeTTL(d)), 1)
				behind := p.queue(k, last)
				again := p.queue(k, alive)
				if time.Since(before) >= d {
					return false
				}
				t.waits("one behind", behind, 2)
				t.waits("the caller that asks again", again, 1)
				t.waits("the caller that will die, asking for a short place", p.queue(k, dead, placeTTL(t.short())), 0)
				t.outlast(d)
				t.lost("the dead one's place", p.release(k, dead))
				t.waits("the caller that asked again", p.queue(k, alive), 0)
				t.ok("release", p.release(k, a))
				t.state("the one behind", p.try(k, last), store.Held)
				t.granted("the caller that asked again", p.queue(k, alive), 1)
				return true
			})
		}),
	property("PlaceIsGivenUp",
		"A waiter that gives up settles its token, and the waiters behind it are served at once.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, ws := key("k"), store.NewToken(), tokens(4)
			t.granted("the holder", p.try(k, a), 1)
			for i, w := range ws {
				t.waits("waiter "+itoa(i), p.queue(k, w), i)
			}
			t.ok("the first gives up", q.release(k, ws[0]))
			t.ok("the third is undone", q.undo(k, ws[2]))
			t.lost("the third, giving up again", q.release(k, ws[2]))
			t.waits("the second", p.queue(k, ws[1]), 0)
			t.ok("release", p.release(k, a))
			t.granted("the second", p.queue(k, ws[1]), 1)
			t.ok("its release", p.release(k, ws[1]))
			t.granted("the fourth", p.queue(k, ws[3]), 1)
		}),
	property("KeepAnswersWaiters",
		"A record answers all duplicates that wait for it, at once. They are not granted one after the other, and once they have the answer their places do not block.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, dup1, locker, dup2 := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a, answerable), 1)
			t.waits("a duplicate", q.queue(k, dup1, answerable), 0)
			t.waits("a lock", q.queue(k, locker), 1)
			t.waits("another duplicate", p.queue(k, dup2, answerable), 2)
			t.ok("keep", p.keep(k, a, "answer"))
			t.state("a look at the lock", p.look(k), store.Held)
			t.done("a duplicate", q.queue(k, dup1, answerable), "answer")
			t.granted("the lock", q.queue(k, locker), 1)
			t.ok("the lock's release", q.release(k, locker))
			t.done("another duplicate", p.try(k, dup2, answerable), "answer")
			t.lost("settling its place", p.release(k, dup2))
			t.state("a look at the lock", p.look(k), store.Free)
		}),
	property("LeftIsUntilALeaseEnds",
		"A waiter that misses its wake-up asks again after Left. If Left is too long, the waiter asks too late. If no lease is live, there is nothing to wait for and Left is 0.", func(t *Trial) {
			p := t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			start := time.Now()
			t.granted("the holder", p.try(k, a), 1)
			t.left("a try", p.try(k, store.NewToken()), start, long)
			t.left("a look", p.look(k), start, long)
			t.left("a waiter", p.queue(k, b, placeTTL(long/2)), start, long)
			t.left("a try behind a shorter place", p.try(k, store.NewToken()), start, long)
			renewed := time.Now()
			t.ok("renew", p.renew(k, a, long/4))
			t.left("the waiter, after a renewal", p.queue(k, b), renewed, long/4)

			k = key("permits")
			t.granted("a holder", p.try(k, a, permits(2)), 1)
			start = time.Now()
			t.granted("another that ends sooner", p.try(k, b, permits(2), ttl(long/2)), 1)
			t.left("a try", p.try(k, store.NewToken(), permits(2)), start, long/2)

			k = key("reserved")
			t.waits("reserving", p.reserve(k, a), 0)
			for what, d := range map[string]store.Answer{
				"a try": p.try(k, store.NewToken()), "a look": p.look(k), "a waiter": p.queue(k, b),
			} {
				if t.state(what, d, store.Held); d.Left != 0 {
					t.Fatalf("%s, behind a place: Left is %v, and the key has no holder", what, d.Left)
				}
			}
		}),
	property("TenThousandWaiters",
		"A popular key has a long queue. To join it and to be served must stay in order, and must not cost the square of its length.", func(t *Trial) {
			const batch, served = 500, 40
			n := t.h.Crowd
			p, q := t.process(), t.process()
			k, holder, ws := key("k"), store.NewToken(), tokens(n)
			t.granted("the holder", p.try(k, holder), 1)
			// The first join one by one, so that their order is known; the
			// elements of one batch may join in any order.
			for i, w := range ws[:served] {
				t.waits("waiter "+itoa(i), p.queue(k, w), i)
			}
			joined := served
			for some := range slices.Chunk(ws[served:], batch) {
				claims := make([]store.Claim, len(some))
				for i, w := range some {
					claims[i] = lock(k, w)
					claims[i].Mode = store.Queue
				}
				for _, answer := range p.claims(claims...) {
					t.waits("one of a batch of waiters", answer, joined)
				}
				joined += len(some)
			}
			for i, w := range ws[:served] {
				t.ok("release", q.release(k, holder))
				t.state("one far behind", q.try(k, ws[n-1]), store.Held)
				t.granted("waiter "+itoa(i), p.queue(k, w), 1)
				if i+1 < served {
					t.waits("waiter "+itoa(i+1), p.queue(k, ws[i+1]), 0)
				}
				holder = w
			}
			t.giveUp(p, k, ws[served:], batch)
			t.ok("the last release", q.release(k, holder))
			t.state("a look after that", p.look(k), store.Free)
		}).heavy(),
}

// giveUp settles the places of waiters.
func (t *Trial) giveUp(p *process, k store.Key, ws []store.Token, batch int) {
	t.Helper()
	for some := range slices.Chunk(ws, batch) {
		settlements := make([]store.Settlement, len(some))
		for i, w := range some {
			settlements[i] = store.Settlement{Key: k, Token: w}
		}
		for _, err := range p.settlements(settlements...) {
			t.ok("giving up a place", err)
		}
	}
}

// waits fails the trial unless the answer is Held, with a place that has that many
// before it. It returns the answer's fence.
func (t *Trial) waits(what string, a store.Answer, ahead int) uint64 {
	t.Helper()
	t.state(what, a, store.Held)
	if !a.Queued {
		t.Fatalf("%s: has no place in the queue", what)
	}
	if a.Ahead < ahead || ahead == 0 && a.Ahead != 0 {
		t.Fatalf("%s: answered that at most %d places are ahead, there are %d", what, a.Ahead, ahead)
	}
	return a.Fence
}

var numberProperties = []Property{
	property("LeaseKeepsItsNumber",
		"A place ends while a lease that was taken from it is live. A new place must not get its number, because the end of the lease deletes all places there.", func(t *Trial) {
			p := t.process()
			k, place, next, holder := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.state("a place", p.reserve(k, place), store.Held)
			t.granted("a claim from it", p.try(k, holder, from(place)), 1)
			t.ok("giving the place up", p.release(k, place))
			t.waits("a new place", p.reserve(k, next), 0)
			t.ok("the holder's release", p.release(k, holder))
			t.state("a stranger", p.try(k, store.NewToken()), store.Held)
			t.granted("a claim from the new place", p.try(k, store.NewToken(), from(next)), 1)
		}),
	property("OneLeaseAtANumber",
		"A queue may give one job to two workers. Both claim from the job's place, and one of them must wait although the key has room. It is granted only if the other does not finish.", func(t *Trial) {
			p, q := t.process(), t.process()
			for _, n := range []int{1, 3} {
				k, job, first, second := key("k"+itoa(n)), store.NewToken(), store.NewToken(), store.NewToken()
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the first", p.try(k, first, from(job), permits(n)), 1)
				t.waits("the second, trying", q.try(k, second, from(job), permits(n)), 0)
				t.waits("the second, looking", q.look(k, from(job), permits(n)), 0)
				t.waits("the second, waiting", q.queue(k, second, from(job), permits(n)), 0)
				t.ok("the first abandons", p.abandon(k, first))
				t.nowhere("another caller", p.try(k, store.NewToken(), permits(n)))
				t.granted("the second", q.queue(k, second, from(job), permits(n)), 2)
				first = store.NewToken()
				t.waits("the first, once more", p.queue(k, first, from(job), permits(n)), 0)
				t.ok("the second is done", q.release(k, second))
				t.lost("settling the first, whose place was deleted", p.release(k, first))
				t.lost("settling the job's place", p.release(k, job))
				t.granted("another caller", p.try(k, store.NewToken(), permits(n)), 1)
			}
		}),
	property("PlaceOutlivesTheLease",
		"A job whose worker dies is tried again and must not queue behind later jobs. Its place blocks again when the lease expires, even if no call has noticed that.", func(t *Trial) {
			p, q := t.process(), t.process()
			for name, end := range map[string]func(k store.Key, a store.Token){
				"abandoned": func(k store.Key, a store.Token) { t.ok("abandon", q.abandon(k, a)) },
				"undone":    func(k store.Key, a store.Token) { t.ok("undo", q.undo(k, a)) },
				"expired": func(k store.Key, a store.Token) {
					t.ok("the last renewal", q.renew(k, a, t.short()))
					t.outlast(t.short())
				},
			} {
				k, job, b, a := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the worker", q.try(k, a, from(job)), 1)
				t.waits("a waiter", p.queue(k, b), 0)
				end(k, a)
				t.state("another caller that looks, after the lease was "+name, p.look(k), store.Held)
				t.nowhere("another caller", p.try(k, store.NewToken()))
				t.lost("renew by the worker", q.renew(k, a, long))
				t.waits("the waiter", p.queue(k, b), 1)
				t.state("the next worker, looking", q.look(k, from(job)), store.Free)
				attempt := 2
				if name == "undone" {
					attempt = 1
				}
				a = store.NewToken()
				t.granted("the next worker", q.queue(k, a, from(job)), attempt)
				t.waits("the waiter", p.queue(k, b), 0)
				t.ok("it is done", q.release(k, a))
				t.granted("the waiter", p.queue(k, b), 1)
			}
		}),
	property("CleanEndDeletesTheNumber",
		"A finished job has no place any more. The waiters behind it are served in the same step, and if the job is tried again it is a new one.", func(t *Trial) {
			p, q := t.process(), t.process()
			for name, end := range map[string]func(store.Key, store.Token) error{
				"release": q.release,
				"keep":    func(k store.Key, a store.Token) error { return q.keep(k, a, "answer") },
			} {
				k, job, b, a := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the worker", q.queue(k, a, from(job)), 1)
				t.waits("a waiter", p.queue(k, b), 0)
				t.waits("reserving the place that there is", p.reserve(k, job), 0)
				t.ok(name, end(k, a))
				t.state("another caller, after the "+name, p.try(k, store.NewToken()), store.Held)
				t.granted("the waiter", p.queue(k, b), 1)
				t.ok("its end", p.release(k, b))
				t.lost("giving the place up", p.release(k, job))
				t.granted("a claim from it, as from none", q.try(k, store.NewToken(), from(job)), 1)
			}
		}),
	property("PlaceIsGivenUpAlone",
		"A job that is cancelled while it runs gives its place up, and its worker finishes. If the worker dies, nothing waits for the job to be tried again.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, job, b, a, second := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the worker", q.try(k, a, from(job)), 1)
			t.waits("another worker", q.queue(k, second, from(job)), 0)
			t.waits("a waiter", p.queue(k, b), 0)
			t.ok("giving the place up", p.release(k, job))
			t.lost("giving it up again", p.release(k, job))
			t.ok("renew by the worker", q.renew(k, a, long))
			t.nowhere("a claim from the place", p.try(k, store.NewToken(), from(job)))
			t.waits("the other worker, which waits", q.queue(k, second, from(job)), 0)
			t.waits("the waiter", p.queue(k, b), 0)
			t.ok("the worker abandons", q.abandon(k, a))
			t.waits("the waiter, behind the other worker", p.queue(k, b), 1)
			t.granted("the other worker", q.queue(k, second), 2)
			t.ok("it abandons, too", q.abandon(k, second))
			t.granted("the waiter", p.queue(k, b), 3)
		}),
	property("LeasedNumbersAndPermits",
		"With several permits several jobs run at once. The place of each does not block while its lease is live. If the lease is abandoned, the place comes before later ones again.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, jobs, as := key("k"), tokens(3), tokens(3)
			b := store.NewToken()
			for i, job := range jobs {
				t.waits("reserving", p.reserve(k, job), i)
			}
			t.waits("a waiter", p.queue(k, b, permits(3)), 3)
			t.waits("the second job, before the first", q.try(k, as[1], permits(3), from(jobs[1])), 1)
			t.granted("the first job", q.try(k, as[0], permits(3), from(jobs[0])), 1)
			t.granted("the second job", q.try(k, as[1], permits(3), from(jobs[1])), 1)
			t.waits("the waiter", p.queue(k, b, permits(3)), 1)
			t.ok("the second abandons", q.abandon(k, as[1]))
			t.waits("the third job, behind the second", q.try(k, as[2], permits(3), from(jobs[2])), 1)
			t.ok("the first abandons", q.abandon(k, as[0]))
			t.waits("the third job, behind both", q.try(k, as[2], permits(3), from(jobs[2])), 2)
			t.waits("the second job, behind the first", q.try(k, store.NewToken(), permits(3), from(jobs[1])), 1)
			for i, job := range jobs {
				as[i] = store.NewToken()
				t.granted("job "+itoa(i+1), q.try(k, as[i], permits(3), from(job)), 3)
			}
			t.waits("the waiter, when all permits are taken", p.queue(k, b, permits(3)), 0)
			t.ok("the second is done", q.release(k, as[1]))
			t.granted("the waiter", p.queue(k, b, permits(3)), 1)
			t.ok("the first abandons", q.abandon(k, as[0]))
			t.nowhere("another caller, behind its place", p.try(k, store.NewToken(), permits(3)))
			t.granted("the first job", q.try(k, store.NewToken(), permits(3), from(jobs[0])), 2)
		}),
	property("ManyLeasedNumbers",
		"A key with many permits runs many jobs at once. Each of their places is deleted, given up or kept on its own.", func(t *Trial) {
			const n = 120
			p, q := t.process(), t.process()
			k, jobs, as := key("k"), tokens(n), tokens(n)
			for i, job := range jobs {
				t.waits("reserving", p.reserve(k, job), i)
			}
			for i, job := range jobs {
				t.granted("job "+itoa(i), q.try(k, as[i], permits(n), from(job)), 1)
			}
			last := store.NewToken()
			t.waits("a waiter", p.queue(k, last, permits(n)), 0)
			t.waits("the last job again", q.try(k, store.NewToken(), permits(n), from(jobs[n-1])), 0)
			var ends []store.Settlement
			standing := 0
			for i, job := range jobs {
				x := store.Settlement{Key: k, Token: as[i], Outcome: store.Undo}
				switch i % 4 {
				case 0:
					x.Outcome = store.Release
				case 1:
					ends = append(ends, store.Settlement{Key: k, Token: job})
				case 2:
					standing++
				case 3:
					continue // it works on
				}
				ends = append(ends, x)
			}
			for i, err := range p.settlements(ends...) {
				t.ok("settlement "+itoa(i), err)
			}
			t.waits("the waiter", p.queue(k, last, permits(n)), standing)
			for i, job := range jobs {
				d := q.try(k, store.NewToken(), permits(n), from(job))
				what := "job " + itoa(i) + ", at last"
				switch i % 4 {
				case 0, 1:
					if standing > 0 {
						t.nowhere(what, d)
					}
				case 2:
					t.granted(what, d, 1)
					standing--
				case 3:
					t.waits(what, d, 0)
				}
				if standing == 0 {
					break
				}
			}
			t.granted("the waiter", p.queue(k, last, permits(n)), 1)
		}),
}
