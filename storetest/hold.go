package storetest

import (
	"math"
	"time"

	"github.com/dibs-go/dibs"
)

var holdProperties = []Property{
	{
		Name: "HoldCountsFromTheFirstRefusal",
		Why:  "A job that was cancelled never comes for its place, and must not keep the key from the others for as long as a job may wait in its queue. One that is late because all workers are loses nothing: only when somebody else wants the key does its time begin, and then once.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			trying, queueing, job, b := key("trying"), key("queueing"), dibs.NewToken(), dibs.NewToken()
			t.waits("reserving", p.reserve(trying, job, hold(t.short())), 0)
			t.waits("reserving", p.reserve(queueing, job, hold(t.short())), 0)
			t.outlast(t.short())

			before := time.Now()
			t.kept("the first that tries", q.try(trying, dibs.NewToken()), before, t.short())
			after := time.Now()
			t.kept("the first that queues", q.queue(queueing, b), before, t.short())
			a := dibs.NewToken()
			t.ends("the place", before, after, t.short(), func() bool {
				d := p.try(trying, a)
				if d.State == dibs.Held {
					return false
				}
				t.granted("one that tries", d, 1)
				return true
			})
			t.lost("giving the place up after that", p.release(trying, job))
			t.nowhere("the job, too late", q.try(trying, dibs.NewToken(), from(job)))

			t.outlast(t.short())
			t.state("a stranger, when the waiter's turn has come unasked", p.try(queueing, dibs.NewToken()), dibs.Held)
			t.granted("the waiter", q.queue(queueing, b), 1)

			k := key("told")
			t.waits("reserving", p.reserve(k, job, hold(long/2)), 0)
			before = time.Now()
			t.kept("the first that tries", q.try(k, dibs.NewToken()), before, long/2)
			t.kept("another that tries", p.try(k, dibs.NewToken()), before, long/2)
			t.kept("one that looks", q.look(k), before, long/2)
			t.kept("one that queues", q.queue(k, b), before, long/2)
		},
	},
	{
		Name: "HoldIsNotCountedUnasked",
		Why:  "After a night without workers the first job of each key must still have its place. Who only looks, or enqueues more jobs, does not want the key yet.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			job, other := dibs.NewToken(), dibs.NewToken()
			asks := map[string]func(dibs.Key){
				"nobody": func(dibs.Key) {},
				"a look": func(k dibs.Key) {
					t.state("a stranger that looks", p.look(k), dibs.Held)
				},
				"a look from a place": func(k dibs.Key) {
					t.waits("reserving behind", p.reserve(k, other), 1)
					t.waits("the place behind, looking", q.look(k, from(other)), 1)
				},
				"a reservation": func(k dibs.Key) {
					t.waits("reserving behind", p.reserve(k, other), 1)
					t.waits("reserving behind, again", q.reserve(k, other), 1)
				},
				"itself": func(k dibs.Key) {
					t.state("the job, looking", p.look(k, from(job)), dibs.Free)
				},
			}
			for name, ask := range asks {
				t.waits("reserving", p.reserve(key(name), job, hold(t.short())), 0)
				ask(key(name))
			}

			answered, a := key("answered"), dibs.NewToken()
			t.granted("one that leaves an answer", p.try(answered, a), 1)
			t.ok("keep", p.keep(answered, a, "answer"))
			t.waits("reserving", p.reserve(answered, job, hold(t.short())), 0)
			t.done("one that is answered", q.try(answered, dibs.NewToken(), answerable), "answer")
			asks["answered"] = nil

			taken := key("taken")
			t.waits("reserving the other", p.reserve(taken, other, permits(2)), 0)
			t.granted("its worker", q.try(taken, a, from(other), permits(2)), 1)
			t.waits("reserving", p.reserve(taken, job, permits(2), hold(t.short())), 0)
			t.waits("another of the taken place", q.try(taken, dibs.NewToken(), from(other), permits(2)), 0)
			t.waits("the taken place's token", q.queue(taken, other, permits(2)), 0)

			t.outlast(t.short())
			for name := range asks {
				t.ok("giving up the place, which stands after "+name, p.release(key(name), job))
			}
			t.ok("giving up the place, which stands after claims from another", p.release(taken, job))
		},
	},
	{
		Name: "HoldIsTheFirstPlaces",
		Why:  "What keeps everybody from the key is the first place. Those behind it could not be redeemed yet, so they are not to blame.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			jobs := tokens(3)
			asks := map[string]func(k dibs.Key) dibs.Answer{
				"a stranger": func(k dibs.Key) dibs.Answer { return q.try(k, dibs.NewToken()) },
				"the second": func(k dibs.Key) dibs.Answer { return q.try(k, dibs.NewToken(), from(jobs[1])) },
				"the third":  func(k dibs.Key) dibs.Answer { return q.try(k, dibs.NewToken(), from(jobs[2])) },
			}
			for name, ask := range asks {
				for i, job := range jobs {
					t.waits("reserving", p.reserve(key(name), job, hold(t.short())), i)
				}
				before := time.Now()
				t.kept(name+", claiming", ask(key(name)), before, t.short())
			}
			t.outlast(t.short())
			for name := range asks {
				t.granted("the second, after "+name+" claimed", q.try(key(name), dibs.NewToken(), from(jobs[1])), 1)
				t.lost("giving the first place up", p.release(key(name), jobs[0]))
				t.ok("giving the third place up", p.release(key(name), jobs[2]))
			}
		},
	},
	{
		Name: "HoldNeedsAFreePermit",
		Why:  "While others hold the key it is not the place that keeps anybody from it, and a job whose turn has not come is not late. With several permits it is in the way as soon as one is free.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			job, as := dibs.NewToken(), tokens(2)
			full := map[string]int{"a mutex": 1, "a semaphore": 2}
			for name, n := range full {
				k := key(name)
				for _, a := range as[:n] {
					t.granted("a holder", p.try(k, a, permits(n)), 1)
				}
				t.waits("reserving", p.reserve(k, job, permits(n), hold(t.short())), 0)
				t.state("a stranger", q.try(k, dibs.NewToken(), permits(n)), dibs.Held)
				t.waits("a waiter", q.queue(k, dibs.NewToken(), permits(n)), 1)
				t.waits("the job", p.try(k, dibs.NewToken(), permits(n), from(job)), 0)
			}
			free := key("a free permit")
			t.granted("a holder", p.try(free, as[0], permits(2)), 1)
			t.waits("reserving", p.reserve(free, job, permits(2), hold(t.short())), 0)
			before := time.Now()
			t.kept("a stranger", q.try(free, dibs.NewToken(), permits(2)), before, t.short())

			t.outlast(t.short())
			t.granted("a stranger, when the place is over", q.try(free, as[1], permits(2)), 1)
			for name, n := range full {
				k := key(name)
				t.ok("release", p.release(k, as[0]))
				t.granted("the job, in its turn", q.try(k, dibs.NewToken(), permits(n), from(job)), 1)
			}
		},
	},
	{
		Name: "HoldIsNoLongerThanThePlace",
		Why:  "A place that is about to run out does, whatever its Hold; and one that has none is in the way for as long as it stands. A Hold that is too short to be counted is not none.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			job := dibs.NewToken()
			for name, test := range map[string]struct {
				place, hold, left time.Duration
			}{
				"none":                  {long, 0, long},
				"longer":                {long / 2, long, long / 2},
				"as long as can be":     {long, math.MaxInt64, long},
				"of a place for ever":   {math.MaxInt64, long, long},
				"short, of one as well": {math.MaxInt64, t.short(), t.short()},
			} {
				k := key(name)
				asked := time.Now()
				t.waits("reserving", p.reserve(k, job, place(test.place), hold(test.hold)), 0)
				t.kept("a stranger, with a Hold "+name, q.try(k, dibs.NewToken()), asked, test.left)
			}
			t.inTime("ending", func(k dibs.Key, d time.Duration) bool {
				before := time.Now()
				t.waits("reserving for a short time", p.reserve(k, job, place(d), hold(2*d)), 0)
				stranger := q.try(k, dibs.NewToken())
				if time.Since(before) >= d {
					return false
				}
				t.kept("a stranger", stranger, before, d)
				t.outlast(d)
				t.granted("a stranger, when the place has run out", q.try(k, dibs.NewToken()), 1)
				return true
			})
			before := time.Now()
			shortest := key("shortest")
			t.waits("reserving", p.reserve(shortest, job, hold(1)), 0)
			t.kept("a stranger, with the shortest Hold", q.try(shortest, dibs.NewToken()), before, time.Millisecond)
			t.outlast(t.short())
			t.granted("a stranger, when the shortest Hold is over", q.try(shortest, dibs.NewToken()), 1)
			t.granted("a stranger, when the one that was for ever has", q.try(key("short, of one as well"), dibs.NewToken()), 1)
		},
	},
	{
		Name: "ProlongingStartsAHoldAnew",
		Why:  "A job that is told to wait some more, as one that is tried again later, is expected then. What its place had in the way until then does not count any more.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			job, other := dibs.NewToken(), dibs.NewToken()
			before := time.Now()
			k := key("reserved again")
			t.waits("reserving", p.reserve(k, job, hold(t.short())), 0)
			t.kept("a stranger", q.try(k, dibs.NewToken()), before, t.short())
			// If the place is over by now this makes one like it.
			t.waits("reserving again", q.reserve(k, job, hold(t.short())), 0)
			t.outlast(t.short())
			before = time.Now()
			t.kept("a stranger, after the Hold", q.try(k, dibs.NewToken()), before, t.short())

			// The second job's place keeps one from the free permit, and then a Try
			// finds it behind the first job's.
			for name, stands := range map[string]time.Duration{"tried": long, "tried in passing": 0} {
				t.inTime(name, func(k dibs.Key, d time.Duration) bool {
					a := dibs.NewToken()
					t.waits("reserving the first", p.reserve(k, other, permits(2)), 0)
					t.granted("its worker", q.try(k, a, from(other), permits(2)), 1)
					t.waits("reserving the second", p.reserve(k, job, permits(2), hold(d)), 0)
					before := time.Now()
					t.kept("a stranger", q.try(k, dibs.NewToken(), permits(2)), before, d)
					t.ok("the first abandons", q.abandon(k, a))
					tries := p.try(k, job, permits(2), place(stands))
					if time.Since(before) >= d {
						return false
					}
					t.waits("the second, trying", tries, 1)
					t.outlast(d)
					if stands > 0 {
						t.ok("giving up what was prolonged", p.release(k, job))
					} else {
						t.lost("giving up what was not", p.release(k, job))
					}
					return true
				})
			}
		},
	},
	{
		Name: "ProlongingSetsTheHold",
		Why:  "Who prolongs a place knows best when its job is to come back. A Try that merely keeps the place alive does not know.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, job := key("k"), dibs.NewToken()
			for _, d := range []time.Duration{long / 2, 0, long / 3, long / 4} {
				before := time.Now()
				t.waits("reserving", p.reserve(k, job, hold(d)), 0)
				want := d
				if d == 0 {
					want = long
				}
				t.kept("a stranger", q.try(k, dibs.NewToken()), before, want)
			}

			k = key("tried")
			a := dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job, hold(long/2)), 0)
			t.waits("the place's token, trying", q.try(k, job), 0)
			t.ok("release", p.release(k, a))
			before := time.Now()
			t.kept("a stranger", q.try(k, dibs.NewToken()), before, long/2)

			k = key("queued")
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job, hold(long/2)), 0)
			t.waits("the place's token, queueing", q.queue(k, job), 0)
			before = time.Now()
			t.waits("reserving again", p.reserve(k, job), 0)
			t.ok("release", p.release(k, a))
			t.kept("a stranger", q.try(k, dibs.NewToken()), before, long)
		},
	},
	{
		Name: "StandingAgainStartsAHoldAnew",
		Why:  "When a worker dies its queue needs a while to give the job to another one, and the job's place has all its time for that, however close it was before.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			job := dibs.NewToken()
			for name, end := range map[string]func(dibs.Key, dibs.Token) error{
				"abandoned": q.abandon, "undone": q.undo,
				"run out": func(k dibs.Key, a dibs.Token) error { return q.renew(k, a, t.short()) },
			} {
				t.inTime(name, func(k dibs.Key, d time.Duration) bool {
					a := dibs.NewToken()
					t.waits("reserving", p.reserve(k, job, hold(d)), 0)
					before := time.Now()
					t.kept("a stranger", p.try(k, dibs.NewToken()), before, d)
					worker := q.try(k, a, from(job))
					if time.Since(before) >= d {
						return false
					}
					t.granted("the worker", worker, 1)
					t.state("a stranger, while it works", p.try(k, dibs.NewToken()), dibs.Held)
					t.ok(name, end(k, a))
					t.outlast(t.short() + d) // also of the lease that runs out, and of its place's Hold
					before = time.Now()
					t.kept("a stranger, after the lease was "+name, p.try(k, dibs.NewToken()), before, d)
					t.outlast(d)
					t.state("a stranger, after the place of the lease that was "+name, p.try(k, dibs.NewToken()), dibs.Granted)
					return true
				})
			}
		},
	},
	{
		Name: "RedeemerSetsTheHold",
		Why:  "A worker that takes a job's place knows how long the queue needs to give the job to another one, should it die. That is another time than how late the job may begin.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			job := dibs.NewToken()
			again := []string{"abandoned", "undone", "run out", "without", "reserved", "asked for"}
			want := map[string]time.Duration{"without": long / 2, "reserved": long / 3}
			for _, name := range again {
				k, a := key(name), dibs.NewToken()
				t.waits("reserving", p.reserve(k, job, hold(long/2)), 0)
				edits := []edit{from(job), hold(long / 4)}
				switch name {
				case "without":
					edits = edits[:1]
				case "run out": // and nobody looks until it has
					edits = append(edits, ttl(t.short()))
				}
				t.granted("the worker", q.try(k, a, edits...), 1)
				switch name {
				case "run out":
					continue
				case "undone":
					t.ok("undo", q.undo(k, a))
					continue
				case "reserved":
					t.waits("the place's token, reserving", p.reserve(k, job, hold(long/3)), 0)
				case "asked for":
					t.waits("the place's token, trying", p.try(k, job), 0)
					t.waits("the place's token, queueing", p.queue(k, job), 0)
					t.waits("another worker", p.try(k, dibs.NewToken(), from(job), hold(long/5)), 0)
				}
				t.ok("abandon", q.abandon(k, a))
			}

			k, a := key("not granted"), dibs.NewToken()
			want["not granted"] = long / 2
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job, hold(long/2)), 0)
			t.waits("the worker, before its turn", q.try(k, dibs.NewToken(), from(job), hold(long/4)), 0)
			t.ok("release", p.release(k, a))
			t.state("the worker, looking", q.look(k, from(job), hold(long/4)), dibs.Free)

			t.outlast(t.short())
			for _, name := range append(again, "not granted") {
				d := want[name]
				if d == 0 {
					d = long / 4
				}
				before := time.Now()
				t.kept("a stranger, "+name, p.try(key(name), dibs.NewToken()), before, d)
			}
		},
	},
	{
		Name: "DeadPlacesCostTheirHoldsInTurn",
		Why:  "When several jobs of a key were cancelled, each of their places is in the way when it is the first, and the one that waits has its turn after all of them.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, jobs, last := key("k"), tokens(2), dibs.NewToken()
			for i, job := range jobs {
				t.waits("reserving", p.reserve(k, job, hold(t.short())), i)
			}
			t.waits("reserving the last", p.reserve(k, last), 2)
			before := time.Now()
			d := q.try(k, dibs.NewToken(), from(last))
			t.kept("the last", d, before, t.short())
			after := time.Now()
			ahead := 2
			t.endsInSteps("two places", before, after, 2*t.short(), func() bool {
				d = q.try(k, dibs.NewToken(), from(last))
				if d.State != dibs.Held {
					return true
				}
				if !d.Queued || d.Left <= 0 || d.Left > t.short()+tick { // stores round up
					t.Fatalf("the last: Queued %v, with %v left", d.Queued, d.Left)
				}
				ahead = min(ahead, d.Ahead)
				return false
			})
			t.granted("the last", d, 1)
			if ahead != 1 {
				t.Fatalf("the last had at least %d places before it, and was to have 1 before its turn", ahead)
			}
		},
	},
	{
		Name: "HoldsInABatch",
		Why:  "Claims that are refused and claims that are granted share a batch. Each place has the Hold that was asked for it, and each answer tells of its own.",
		Check: func(t *Trial) {
			const n = 12
			p, q := t.process(), t.process()
			t.inTime("k", func(k dibs.Key, d time.Duration) bool {
				jobs, holds := tokens(n), []time.Duration{d, 0, long / 2, long / 3}
				var reserves, claims []dibs.Claim
				for i, job := range jobs {
					// 7 and 12 have no common factor: the keys are in no order.
					k := key(k.Name + " " + itoa(i*7%n))
					c := lock(k, job, hold(holds[i%4]))
					c.Mode = dibs.Reserve
					reserves = append(reserves, c)
					queue := lock(k, dibs.NewToken())
					queue.Mode = dibs.Queue
					claims = append(claims, lock(k, dibs.NewToken()), lock(key(k.Name+" free"), dibs.NewToken()), queue)
				}
				redeemed, a := key(k.Name+" redeemed"), dibs.NewToken()
				c := lock(redeemed, jobs[0], hold(long/2))
				c.Mode = dibs.Reserve
				reserves = append(reserves, c)
				claims = append(claims, lock(redeemed, dibs.NewToken()), lock(redeemed, a, from(jobs[0]), hold(d)))

				reserved := time.Now()
				for _, d := range p.claims(reserves...) {
					t.waits("reserving", d, 0)
				}
				before := time.Now()
				answers := q.claims(claims...)
				if time.Since(before) >= d {
					return false
				}
				for i := range jobs {
					left, since := holds[i%4], before
					if left == 0 {
						left, since = long, reserved // as long as the place
					}
					t.kept("one that tries", answers[3*i], since, left)
					t.granted("one with a key of its own", answers[3*i+1], 1)
					t.kept("one that queues", answers[3*i+2], since, left)
				}
				t.state("one that tries as the place is redeemed", answers[3*n], dibs.Held)
				t.granted("the one that redeems", answers[3*n+1], 1)
				t.ok("abandon", q.abandon(redeemed, a))

				t.outlast(d)
				for i := range jobs {
					answer := q.claim(claims[3*i+2])
					if holds[i%4] == d {
						t.granted("the one that queues", answer, 1)
					} else {
						t.state("the one that queues", answer, dibs.Held)
					}
				}
				before = time.Now()
				t.kept("one that tries when the place stands again", p.try(redeemed, dibs.NewToken()), before, d)
				return true
			})
		},
	},
}

// hold lets the reserved place keep others from the key for so long.
func hold(d time.Duration) edit { return func(c *dibs.Claim) { c.Hold = d } }

// kept fails the trial unless the answer is Held for d from a moment on that came
// since.
func (t *Trial) kept(what string, a dibs.Answer, since time.Time, d time.Duration) {
	t.Helper()
	t.state(what, a, dibs.Held)
	// Stores may keep times in milliseconds, and round up what they have no room for.
	least := d - time.Since(since) - tick
	if a.Left <= 0 || a.Left > d+time.Microsecond || a.Left < least {
		t.Fatalf("%s: Left is %v, want between %v and %v", what, a.Left, least, d)
	}
}

// nowhere fails the trial unless the answer is Held, without a place.
func (t *Trial) nowhere(what string, a dibs.Answer) {
	t.Helper()
	if t.state(what, a, dibs.Held); a.Queued {
		t.Fatalf("%s: has a place in the queue, and was to have none", what)
	}
}
