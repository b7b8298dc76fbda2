package storetest

import (
	"time"

	"github.com/dibs-go/dibs"
)

var takenProperties = []Property{
	{
		Name: "TakenPlaceIsGivenUp",
		Why:  "A job that is cancelled while it runs gives its place up, and its worker finishes what it does. If that dies, nothing waits for it to be tried again.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			for name, settle := range map[string]func(dibs.Key, dibs.Token) error{
				"release": p.release, "abandon": p.abandon, "undo": p.undo,
			} {
				k, job, b, a := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the worker", q.try(k, a, from(job)), 1)
				t.waits("a waiter", p.queue(k, b), 0)
				t.lost("keep by the place's token", p.keep(k, job, "answer"))
				t.ok(name+" of the place", settle(k, job))
				t.lost(name+" of the place again", settle(k, job))
				t.ok("renew by the worker", q.renew(k, a, long))
				t.waits("the waiter", p.queue(k, b), 0)
				if d := p.try(k, dibs.NewToken(), from(job)); d.State != dibs.Held || d.Queued {
					t.Fatalf("a claim from the place: %s, Queued %v, want Held without a place", stateName(d.State), d.Queued)
				}
				t.ok("the worker abandons", q.abandon(k, a))
				t.granted("the waiter", p.queue(k, b), 2)
			}
		},
	},
	{
		Name: "TakenPlaceJoinsNoQueue",
		Why:  "Whoever reserves a job's place again while the job runs means the same place. A second one would be redeemed when the job is done, or block the key for nothing.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, job, b, a := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the worker", q.try(k, a, from(job)), 1)
			t.waits("the place's token, reserving for a short time", p.reserve(k, job, place(t.short())), 0)
			t.waits("the place's token, trying", p.try(k, job), 0)
			t.waits("the place's token, queueing", p.queue(k, job), 0)
			look := lock(k, job)
			look.Mode = dibs.Look
			t.waits("the place's token, looking", p.claim(look), 0)
			t.waits("the place's token, reserving", p.reserve(k, job), 0)
			t.waits("a waiter", p.queue(k, b), 0)
			t.ok("the worker abandons", q.abandon(k, a))
			t.outlast(t.short())
			t.waits("the waiter, behind the place that was asked for anew", p.queue(k, b), 1)
			a = dibs.NewToken()
			t.granted("the next worker", q.try(k, a, from(job)), 2)
			t.waits("the place's token, reserving", p.reserve(k, job), 0)
			t.ok("the worker is done", q.release(k, a))
			t.granted("the waiter", p.queue(k, b), 1)
			t.lost("giving up the place", p.release(k, job))
		},
	},
	{
		Name: "TakenPlacesAndPermits",
		Why:  "With several permits several places are taken at once. Each is in nobody's way while its lease stands, and each stands again where it was, before those that came after it.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, jobs, as := key("k"), tokens(3), tokens(3)
			b := dibs.NewToken()
			for i, job := range jobs {
				t.waits("reserving", p.reserve(k, job, permits(3)), i)
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
			t.waits("the second job, behind the first", q.try(k, dibs.NewToken(), permits(3), from(jobs[1])), 1)
			for i, job := range jobs {
				as[i] = dibs.NewToken()
				t.state("job "+itoa(i+1), q.try(k, as[i], permits(3), from(job)), dibs.Granted)
			}
			t.waits("the waiter, when all permits are taken", p.queue(k, b, permits(3)), 0)
			t.ok("the second is done", q.release(k, as[1]))
			t.state("the waiter", p.queue(k, b, permits(3)), dibs.Granted)
			t.ok("the first abandons", q.abandon(k, as[0]))
			t.state("a stranger, behind its place", p.try(k, dibs.NewToken(), permits(3)), dibs.Held)
			t.state("the first job", q.try(k, dibs.NewToken(), permits(3), from(jobs[0])), dibs.Granted)
		},
	},
	{
		Name: "ManyTakenPlaces",
		Why:  "A key with many permits has many places taken at a time. Each of them ends, is given up or stands again on its own.",
		Check: func(t *Trial) {
			const n = 40
			p, q := t.process(), t.process()
			k, jobs, as := key("k"), tokens(n), tokens(n)
			for i, job := range jobs {
				t.waits("reserving", p.reserve(k, job, permits(n)), i)
			}
			for i, job := range jobs {
				t.granted("job "+itoa(i), q.try(k, as[i], permits(n), from(job)), 1)
			}
			b := dibs.NewToken()
			t.waits("a waiter", p.queue(k, b, permits(n)), 0)
			standing := 0
			for i, job := range jobs {
				t.waits("job "+itoa(i)+" again", p.try(k, dibs.NewToken(), permits(n), from(job)), standing)
				t.waits("its place's token", p.reserve(k, job, permits(n)), standing)
				switch i % 4 {
				case 0:
					t.ok("release", q.release(k, as[i]))
				case 1:
					t.ok("giving up the place", p.release(k, job))
					t.ok("renew", q.renew(k, as[i], long))
					t.ok("undo", q.undo(k, as[i]))
				case 2:
					t.ok("abandon", q.abandon(k, as[i]))
					standing++
				case 3:
					continue // it works on
				}
				t.lost("renew after it", q.renew(k, as[i], long))
				if i == 0 {
					t.granted("the waiter", p.queue(k, b, permits(n)), 1)
				}
			}
			last := dibs.NewToken()
			t.waits("one more waiter", p.queue(k, last, permits(n)), standing)
			for i, job := range jobs {
				d := q.try(k, dibs.NewToken(), permits(n), from(job))
				what := "job " + itoa(i) + ", at last"
				switch i % 4 {
				case 0, 1:
					if t.state(what, d, dibs.Held); d.Queued {
						t.Fatalf("%s: has a place, and it was given up", what)
					}
				case 2:
					t.state(what, d, dibs.Granted)
					standing--
				case 3:
					t.waits(what, d, 0)
				}
			}
			t.state("the last waiter", p.queue(k, last, permits(n)), dibs.Granted)
		},
	},
	{
		Name: "TakenPlaceIsToldWhatIsLeft",
		Why:  "Left is until something changes, for everybody. With several permits that may be the end of another lease than the one that has taken the place.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, job := key("k"), dibs.NewToken()
			t.waits("reserving", p.reserve(k, job, permits(2)), 0)
			t.granted("the worker", q.try(k, dibs.NewToken(), from(job), permits(2)), 1)
			start := time.Now()
			t.granted("another holder", p.try(k, dibs.NewToken(), ttl(long/2), permits(2)), 1)
			t.kept("the other worker", p.try(k, dibs.NewToken(), from(job), permits(2)), start, long/2)
			t.kept("the other worker, looking", q.look(k, from(job), permits(2)), start, long/2)
			t.kept("the place's own token", q.try(k, job, permits(2)), start, long/2)
		},
	},
	{
		Name: "TakenPlaceAndTheUnknown",
		Why:  "A job that must not run twice leaves its outcome unknown when its worker dies, from a place as from anywhere. Its place stands, and helps nobody.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, job, a, b := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the worker", q.try(k, a, from(job), atMostOnce), 1)
			t.ok("abandon", q.abandon(k, a))
			t.unknown("the next worker", q.try(k, b, from(job), atMostOnce), a)
			t.unknown("a stranger", p.try(k, dibs.NewToken(), atMostOnce), a)
			t.ok("giving up the place, which stands", p.release(k, job))
			t.unknown("a stranger", p.try(k, dibs.NewToken(), atMostOnce), a)
		},
	},
	{
		Name:  "EvictGivesThePlaceUp",
		Why:   "An operator who ends a lease ends the job's right to the key with it, as if the worker had released it.",
		Needs: []Feature{Inspector},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, job, a, b := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the worker", q.try(k, a, from(job)), 1)
			t.waits("a waiter", p.queue(k, b), 0)
			t.entry("while it works", p, k, dibs.ConditionHeld, 1)
			t.count("evict", 1)(p.inspect().Evict(t.Context(), k, a.ID()))
			t.granted("the waiter", p.queue(k, b), 1)
			t.lost("giving up the place", p.release(k, job))

			k = key("abandoned")
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the worker", q.try(k, a, from(job)), 1)
			t.entry("while it works", p, k, dibs.ConditionHeld, 0)
			t.ok("the last renewal", q.renew(k, a, t.short()))
			t.outlast(t.short())
			t.entry("when it is dead", p, k, dibs.ConditionWaiting, 1)
		},
	},
}

// entry fails the trial unless the Inspector says so of a key.
func (t *Trial) entry(what string, p *process, k dibs.Key, condition dibs.Condition, waiters int) {
	t.Helper()
	e := p.list(dibs.Query{Namespace: &k.Namespace, Name: k.Name})[k]
	if e.Condition != condition || e.Waiters != waiters {
		t.Fatalf("%s: listed as %+v, want it %s, with %d places", what, e, condition, waiters)
	}
}
