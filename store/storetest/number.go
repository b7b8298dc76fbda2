package storetest

import (
	"github.com/dibs-go/dibs/store"
)

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
