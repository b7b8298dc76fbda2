package storetest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

var redeemProperties = []Property{
	{
		Name: "RedeemedByAnotherToken",
		Why:  "Each try of a job is an attempt of its own, with a token of its own, at the one place that was reserved for the job. Until its turn has come it waits there.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, job, b, try := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("a waiter", p.queue(k, b), 1)
			t.waits("the job, before its turn", q.try(k, try, from(job)), 0)
			t.waits("the job, looking before its turn", q.look(k, from(job)), 0)
			t.ok("release", p.release(k, a))
			t.state("the job, looking", q.look(k, from(job)), dibs.Free)
			t.state("a stranger that looks", q.look(k), dibs.Held)
			fence := t.granted("the job", q.try(k, try, from(job)), 1)
			for _, r := range []*process{p, q} {
				if again := t.granted("the job, asking again", r.try(k, try, from(job)), 1); again != fence {
					t.Fatalf("asking again got fence %d, the first time it was %d", again, fence)
				}
			}
			t.ok("renew", q.renew(k, try, long))
			t.lost("renew by the place's token", q.renew(k, job, long))
			t.waits("the waiter", p.queue(k, b), 0)
			t.ok("release", q.release(k, try))
			t.granted("the waiter", p.queue(k, b), 1)
			t.lost("giving the place up after that", p.release(k, job))
			if d := q.try(k, dibs.NewToken(), from(job)); d.State != dibs.Held || d.Queued {
				t.Fatalf("redeeming the place again: %s, Queued %v, want Held without a place", stateName(d.State), d.Queued)
			}
		},
	},
	{
		Name: "PlaceIsRedeemedOnce",
		Why:  "A queue may hand one job to two workers. Both claim from the job's place, and one of them must not run: it waits for the other, and is granted only when that one did not finish.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, job, b, first, second := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the first", p.try(k, first, from(job)), 1)
			t.waits("the second", q.try(k, second, from(job)), 0)
			t.waits("the second, looking", q.look(k, from(job)), 0)
			t.waits("the second, again", p.try(k, second, from(job)), 0)
			t.lost("settling the second", q.release(k, second))
			t.waits("a waiter", p.queue(k, b), 0)
			t.ok("the first abandons", p.abandon(k, first))
			t.waits("the waiter, behind the place again", p.queue(k, b), 1)
			t.granted("the second", q.try(k, second, from(job)), 2)
			t.waits("the first, once more", p.try(k, dibs.NewToken(), from(job)), 0)
			t.ok("the second is done", q.release(k, second))
			if d := p.try(k, dibs.NewToken(), from(job)); d.State != dibs.Held || d.Queued {
				t.Fatalf("redeeming what was released: %s, Queued %v, want Held without a place", stateName(d.State), d.Queued)
			}
			t.granted("the waiter", p.queue(k, b), 1)
		},
	},
	{
		Name:  "PlaceIsRedeemedOnceUnderLoad",
		Why:   "However many claim from one place at the same moment, in however many processes, one is granted.",
		Heavy: true,
		Check: func(t *Trial) {
			procs := []*process{t.process(), t.process(), t.process()}
			for round := range 8 {
				k, job := key("k"+itoa(round)), dibs.NewToken()
				t.waits("reserving", procs[0].reserve(k, job), 0)
				var granted, waiting atomic.Int64
				var running sync.WaitGroup
				for i := range 12 {
					running.Go(func() {
						d := procs[i%len(procs)].try(k, dibs.NewToken(), from(job))
						switch {
						case d.State == dibs.Granted:
							granted.Add(1)
						case d.State == dibs.Held && d.Queued:
							waiting.Add(1)
						}
					})
				}
				running.Wait()
				if granted.Load() != 1 || waiting.Load() != 11 {
					t.Fatalf("of 12 that redeem one place %d were granted and %d wait", granted.Load(), waiting.Load())
				}
			}
		},
	},
	{
		Name: "PlaceStandsAgain",
		Why:  "A job whose worker dies is tried again, and must not have to queue behind those that were enqueued after it. Its place stands where it was, for as long as it was reserved for, and ends in time if nobody comes.",
		Check: func(t *Trial) {
			for name, end := range map[string]func(p *process, k dibs.Key, a dibs.Token){
				"abandoned": func(p *process, k dibs.Key, a dibs.Token) { t.ok("abandon", p.abandon(k, a)) },
				"undone":    func(p *process, k dibs.Key, a dibs.Token) { t.ok("undo", p.undo(k, a)) },
				"run out": func(p *process, k dibs.Key, a dibs.Token) {
					t.ok("the last renewal", p.renew(k, a, t.short()))
					t.outlast(t.short())
				},
			} {
				p, q := t.process(), t.process()
				k, job, b, a := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the worker", q.try(k, a, from(job)), 1)
				t.waits("a waiter", p.queue(k, b), 0)
				end(q, k, a)
				t.lost("renew by the worker, "+name, q.renew(k, a, long))
				t.waits("the waiter, after the lease was "+name, p.queue(k, b), 1)
				if d := p.try(k, dibs.NewToken()); d.State != dibs.Held || d.Queued {
					t.Fatalf("a stranger, after the lease was %s: %s, want Held", name, stateName(d.State))
				}
				t.state("a stranger that looks", p.look(k), dibs.Held)
				attempt := 2
				if name == "undone" {
					attempt = 1
				}
				a = dibs.NewToken()
				t.state("the next worker, looking", q.look(k, from(job)), dibs.Free)
				t.granted("the next worker", q.try(k, a, from(job)), attempt)
				t.ok("it is done", q.release(k, a))
				t.granted("the waiter", p.queue(k, b), 1)
			}
		},
	},
	{
		Name: "PlaceStandsAgainForAsLong",
		Why:  "While it works a job has no use for the rest of its place's time, so that must not end. When the worker is gone the place is there for as long again, and after that the others go on.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			for name, end := range map[string]func(dibs.Key, dibs.Token) error{"abandon": q.abandon, "undo": q.undo} {
				t.inTime(name, func(k dibs.Key, d time.Duration) bool {
					job, b, a := dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
					before := time.Now()
					t.waits("reserving for a short time", p.reserve(k, job, place(d)), 0)
					worker := q.try(k, a, from(job))
					if time.Since(before) >= d {
						return false
					}
					t.granted("the worker", worker, 1)
					t.outlast(d)
					t.waits("another worker, after the place's time", p.try(k, dibs.NewToken(), from(job)), 0)
					t.waits("a waiter", p.queue(k, b), 0)
					before = time.Now()
					t.ok(name, end(k, a))
					t.ends("the place", before, time.Now(), d, func() bool {
						return p.queue(k, b).State != dibs.Held
					})
					t.state("the waiter", p.queue(k, b), dibs.Granted)
					t.lost("giving the place up after that", p.release(k, job))
					return true
				})
			}
		},
	},
	{
		Name: "DeadWorkersPlaceIsSeen",
		Why:  "What has ended is dead though nobody has noticed. Whoever looks first, after a worker's lease has run out, finds its job's place in the way.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			for name, edits := range map[string][]edit{"plain": nil, "answerable": {answerable}} {
				k, job := key(name), dibs.NewToken()
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the worker", q.try(k, dibs.NewToken(), from(job), ttl(t.short())), 1)
				t.outlast(t.short())
				t.state("a stranger that looks", p.look(k, edits...), dibs.Held)
				t.state("the next worker, looking", q.look(k, append(edits, from(job))...), dibs.Free)
				t.state("a stranger", p.try(k, dibs.NewToken(), edits...), dibs.Held)
				t.granted("the next worker", q.try(k, dibs.NewToken(), append(edits, from(job))...), 2)
			}
		},
	},
	{
		Name: "PlaceOfADeadLeaseRunsOut",
		Why:  "A worker may die, and its job be gone. Those behind wait for the lease to run out, and then for the place, and no longer.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, job, a, b := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the worker", q.try(k, a, from(job)), 1)
			t.waits("a waiter", p.queue(k, b), 0)
			t.waits("reserving for a short time", p.reserve(k, job, place(t.short())), 0)
			before := time.Now()
			t.ok("the last renewal", q.renew(k, a, t.short()))
			t.endsInSteps("the lease and the place", before, time.Now(), 2*t.short(), func() bool {
				d := p.queue(k, b)
				if d.State == dibs.Held {
					return false
				}
				t.granted("the waiter", d, 2)
				return true
			})

			k, a = key("nobody looks"), dibs.NewToken()
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the worker", q.try(k, a, from(job)), 1)
			t.waits("reserving for a short time", p.reserve(k, job, place(t.short())), 0)
			t.ok("the last renewal", q.renew(k, a, t.short()))
			t.outlast(2 * t.short())
			t.state("a look after all has run out", p.look(k), dibs.Free)
			t.granted("the next", p.try(k, dibs.NewToken()), 2)
		},
	},
	{
		Name: "CleanEndGivesThePlaceUp",
		Why:  "A job that is done has no place any more: those behind it go on in that step, and the job, should it be tried again, is new.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			for name, end := range map[string]func(dibs.Key, dibs.Token) error{
				"release": q.release,
				"keep":    func(k dibs.Key, a dibs.Token) error { return q.keep(k, a, "answer") },
			} {
				k, job, b, a := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the worker", q.try(k, a, from(job)), 1)
				t.waits("a waiter", p.queue(k, b), 0)
				t.ok(name, end(k, a))
				t.state("a stranger, after the "+name, p.try(k, dibs.NewToken()), dibs.Held)
				t.lost("renew by the waiter that has yet to confirm", p.renew(k, b, long))
				t.granted("the waiter", p.queue(k, b), 1)
				t.ok("its end", p.release(k, b))
				t.lost("giving the place up", p.release(k, job))
				t.granted("a claim from it, as from none", q.try(k, dibs.NewToken(), from(job)), 1)
			}
		},
	},
	{
		Name: "AnsweredRedeemerGivesThePlaceUp",
		Why:  "A job that finds its answer there already, or that the key was used for something else, does not run. Its place must not hold up those behind it.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, job, other, b := key("done"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the first", p.try(k, dibs.NewToken(), asked("this"), ttl(t.short())), 1)
			t.outlast(t.short())
			a := dibs.NewToken()
			t.granted("the second", p.try(k, a, asked("this"), answerable), 2)
			t.ok("keep", p.keep(k, a, "answer"))
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("reserving another", p.reserve(k, other), 1)
			t.waits("a waiter", p.queue(k, b), 2)
			t.done("the job, looking", q.look(k, from(job), answerable), "answer")
			t.waits("the waiter, after a look", p.queue(k, b), 2)
			t.done("the job", q.try(k, dibs.NewToken(), from(job), answerable), "answer")
			t.lost("giving up its place", p.release(k, job))
			t.state("the other job, asking for something else", q.try(k, dibs.NewToken(), from(other), answerable, asked("that")), dibs.Mismatch)
			t.lost("giving up its place", p.release(k, other))
			t.granted("the waiter", p.queue(k, b), 1)

			k = key("running")
			t.waits("reserving", p.reserve(k, job), 0)
			t.granted("the worker", q.try(k, a, from(job), asked("this")), 1)
			t.state("another worker, asking for something else", p.try(k, dibs.NewToken(), from(job), asked("that")), dibs.Mismatch)
			t.ok("the worker abandons", q.abandon(k, a))
			t.waits("a waiter, behind the place", p.queue(k, b, asked("this")), 1)
			t.granted("the next worker", q.try(k, dibs.NewToken(), from(job), asked("this")), 2)
		},
	},
	{
		Name: "PlaceThatIsNone",
		Why:  "A place that has run out, was given up or was never there gives no right to anything, and takes none away: the claim is one like any other.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, gone := key("k"), dibs.NewToken()
			b, a := dibs.NewToken(), dibs.NewToken()
			t.granted("a claim from a place that never was", q.try(k, a, from(dibs.NewToken())), 1)
			t.waits("reserving", p.reserve(k, gone), 0)
			t.waits("a waiter", p.queue(k, b), 1)
			t.waits("reserving for a short time", p.reserve(k, gone, place(t.short())), 0)
			t.outlast(t.short())
			late := dibs.NewToken()
			if d := q.try(k, late, from(gone)); d.State != dibs.Held || d.Queued {
				t.Fatalf("a claim from a place that has run out: %s, Queued %v, want Held without a place", stateName(d.State), d.Queued)
			}
			t.lost("settling that claim", q.release(k, late))
			t.ok("release", q.release(k, a))
			t.granted("the waiter", p.queue(k, b), 1)

			k = key("waiting")
			t.granted("a holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, gone), 0)
			t.waits("its own token, queueing", p.queue(k, gone), 0)
			if d := q.try(k, late, from(gone)); d.State != dibs.Held || d.Queued {
				t.Fatalf("a claim from a place whose own token waits: %s, Queued %v, want Held without a place", stateName(d.State), d.Queued)
			}
			t.ok("release", p.release(k, a))
			t.granted("its own token", p.queue(k, gone), 1)
			if d := q.try(k, late, from(gone)); d.State != dibs.Held || d.Queued {
				t.Fatalf("a claim from a place whose own token holds the key: %s, Queued %v, want Held without a place", stateName(d.State), d.Queued)
			}
		},
	},
	{
		Name: "RedeemerWithAPlaceOfItsOwn",
		Why:  "A token is in one place at most. One that waits at the end of the queue and then claims from a place in front leaves the end, and does not come up there while it holds the key.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, job, b, last := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("the worker, queueing", q.queue(k, b), 1)
			t.waits("the last", q.queue(k, last), 2)
			t.waits("the worker, claiming from the place", q.try(k, b, from(job)), 0)
			t.ok("release", p.release(k, a))
			t.granted("the worker", q.try(k, b, from(job)), 1)
			t.waits("the last", q.queue(k, last), 0)
			t.ok("release by the worker", q.release(k, b))
			t.granted("the last", q.queue(k, last), 1)
		},
	},
	{
		Name:  "NotifyWakesTheRedeemer",
		Why:   "A worker that waits for its job's turn is told by the place's token when it has come, and so is one that waits for another worker of the same job.",
		Needs: []Feature{Notifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			for name, end := range map[string]func(dibs.Key, dibs.Token) error{
				"release": p.release, "abandon": p.abandon, "undo": p.undo,
				"keep": func(k dibs.Key, a dibs.Token) error { return p.keep(k, a, "answer") },
			} {
				k, a, job, b := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				t.granted("the holder", p.try(k, a), 1)
				t.waits("reserving", q.reserve(k, job), 0)
				t.waits("the worker", q.try(k, b, from(job)), 0)
				woken := q.listen()
				t.ok(name, end(k, a))
				woken.wait("the worker, after a "+name, job)

				t.state("another worker", p.try(k, a, from(job)), dibs.Granted)
				t.waits("the worker", q.try(k, b, from(job)), 0)
				woken = q.listen()
				t.ok(name, end(k, a))
				woken.wait("the worker, after the other's "+name, job)
			}
		},
	},
}
