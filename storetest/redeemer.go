package storetest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// A store may grant a claim that waits at a reserved place in its absence, or wake
// the place as if nobody waited there. These properties take either for right.
var redeemerProperties = []Property{
	{
		Name:  "WaitingRedeemerHasItsTurn",
		Why:   "A worker that waits at its job's place begins when the place's turn comes. If it is told so without asking, what it is told must be its lease, and the place be taken by it.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			for name, end := range map[string]func(k dibs.Key, a, job dibs.Token) error{
				"release": func(k dibs.Key, a, _ dibs.Token) error { return p.release(k, a) },
				"keep":    func(k dibs.Key, a, _ dibs.Token) error { return p.keep(k, a, "answer") },
				"undo":    func(k dibs.Key, a, _ dibs.Token) error { return p.undo(k, a) },
				"release, when the place was prolonged": func(k dibs.Key, a, job dibs.Token) error {
					t.waits("prolonging the place", p.reserve(k, job), 0)
					return p.release(k, a)
				},
			} {
				k, a, job, worker, b := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				heard.ready(k)
				t.granted("the holder", p.try(k, a), 1)
				t.waits("reserving", p.reserve(k, job), 0)
				t.waits("a waiter behind it", q.queue(k, b), 1)
				last := t.waitsAt("the worker", q.try(k, worker, from(job)), 0)
				t.ok(name, end(k, a, job))
				fence, _ := heard.turn("the worker, after a "+name, k, worker, job, last, 1)
				t.state("a stranger", p.try(k, dibs.NewToken()), dibs.Held)
				t.waits("another worker", p.try(k, dibs.NewToken(), from(job), place(0)), 0)
				t.waits("the waiter", q.queue(k, b), 0)
				t.ok("the worker's renewal", q.renew(k, worker, long))
				if again := t.granted("the worker, asking all the same", q.try(k, worker, from(job)), 1); again != fence {
					t.Fatalf("the worker had the fence %d and holds with %d", fence, again)
				}
				if heard.has(b) {
					t.Fatal("the waiter behind the job was told something before its turn")
				}
				t.ok("the worker's release", q.release(k, worker))
				heard.told("the waiter", b, fence, 1)
				t.ok("the waiter's release", q.release(k, b))
				t.lost("giving up the place", p.release(k, job))
				t.state("a look after that", p.look(k), dibs.Free)
			}
		},
	},
	{
		Name:  "GivenUpRedeemerIsNotGranted",
		Why:   "A worker whose caller went away waits no more. A grant to it would keep the key from the job's next worker until it lapses, and count as abandoned then. The job's place stands, and is not its to give up.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			for name, outcome := range map[string]dibs.Outcome{
				"release": dibs.Release, "keep": dibs.Keep, "abandon": dibs.Abandon, "undo": dibs.Undo,
			} {
				k, a, job, worker, b := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				heard.ready(k)
				t.granted("the holder", p.try(k, a), 1)
				t.waits("reserving", p.reserve(k, job), 0)
				t.waits("the worker", q.try(k, worker, from(job)), 0)
				t.waits("a waiter behind it", q.queue(k, b), 1)
				t.lost("the worker's "+name, q.settlements(dibs.Settlement{
					Key: k, Token: worker, Redeems: job, Outcome: outcome, Data: []byte("none"), Retention: long,
				})[0])
				t.ok("release", p.release(k, a))
				t.state("a look from the place", p.look(k, from(job)), dibs.Free)
				t.waits("the waiter, behind the place", q.queue(k, b), 1)
				next := dibs.NewToken()
				fence := t.granted("the next worker", p.try(k, next, from(job)), 1)
				t.lost("renew by the one that gave up", q.renew(k, worker, long))
				if heard.has(worker) {
					t.Fatalf("the worker was told something after its %s", name)
				}
				t.ok("the next worker's release", p.release(k, next))
				heard.told("the waiter", b, fence, 1)
			}

			k, a, job, worker, b := key("place"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("a waiter behind it", q.queue(k, b), 1)
			last := t.waitsAt("the worker", q.try(k, worker, from(job)), 0)
			t.ok("giving up the place", p.release(k, job))
			t.ok("release", p.release(k, a))
			heard.told("the waiter", b, last, 1)
			t.lost("renew by the worker", q.renew(k, worker, long))
			if heard.has(worker) {
				t.Fatal("the worker was told something though its job's place was given up")
			}
		},
	},
	{
		Name:  "OnlyTheLastRedeemerWaits",
		Why:   "Whoever claims from a job's place last is who works on the job now. One that claimed before it may be long gone, and nobody would hear its grant.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			// wait makes the first worker wait, and says at which place for whom.
			wait := func(name string) (k dibs.Key, a, job, first dibs.Token) {
				k, a, job, first = key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				heard.ready(k)
				t.granted("the holder", p.try(k, a), 1)
				t.waits("reserving", p.reserve(k, job), 0)
				t.waits("the first worker", q.try(k, first, from(job)), 0)
				return k, a, job, first
			}

			k, a, job, first := wait("another")
			second := dibs.NewToken()
			last := t.waitsAt("the second worker", q.try(k, second, from(job)), 0)
			t.ok("release", p.release(k, a))
			heard.turn("the second worker", k, second, job, last, 1)
			t.lost("renew by the first worker", q.renew(k, first, long))
			if heard.has(first) {
				t.Fatal("the first worker was told something, and the second one waits")
			}

			k, a, job, first = wait("queue")
			t.waits("the place's own token, queueing", p.queue(k, job), 0)
			t.ok("release", p.release(k, a))
			t.granted("the place's own token", p.queue(k, job), 1)
			if heard.has(first) {
				t.Fatal("the first worker was told something, and the place's own token waits")
			}

			for name, claim := range map[string]func(){
				"another that does not wait": func() {
					t.waits("the second worker", q.try(k, second, from(job), place(0)), 0)
				},
				"itself, not waiting": func() {
					t.waits("the first worker, again", q.try(k, first, from(job), place(0)), 0)
				},
				"the place's own token": func() { t.waits("the place's own token", p.try(k, job), 0) },
			} {
				k, a, job, first = wait(name)
				claim()
				t.ok("release", p.release(k, a))
				t.state("a look from the place, after a claim by "+name, p.look(k, from(job)), dibs.Free)
				t.granted("the next worker", p.try(k, dibs.NewToken(), from(job)), 1)
				if heard.has(first) || heard.has(second) {
					t.Fatalf("a worker was told something after a claim by %s", name)
				}
			}
		},
	},
	{
		Name:  "RedeemersWaitEnds",
		Why:   "A worker that does not ask again for longer than it said has died. Its job's place stands, for the next one.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, job, worker := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("the worker", q.try(k, worker, from(job), place(t.short())), 0)
			t.outlast(t.short())
			t.ok("release", p.release(k, a))
			t.state("a look from the place", p.look(k, from(job)), dibs.Free)
			t.granted("the next worker", p.try(k, dibs.NewToken(), from(job)), 1)
			if heard.has(worker) {
				t.Fatal("the worker was told something after its wait")
			}
		},
	},
	{
		Name:  "ToldRedeemersPlaceStandsAgain",
		Why:   "A worker may die with the word of its grant on the way to it. Its job has the place that it had, as after any lease, and for as long as the worker asked for.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			for _, name := range []string{"undone", "undone by its lease", "abandoned", "run out"} {
				k, a, job, worker, b := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				heard.ready(k)
				t.granted("the holder", p.try(k, a), 1)
				t.waits("reserving", p.reserve(k, job, hold(long/2)), 0)
				t.waits("a waiter behind it", q.queue(k, b), 1)
				last := t.waitsAt("the worker", q.try(k, worker, from(job), hold(long/4)), 0)
				t.ok("release", p.release(k, a))
				heard.turn("the worker", k, worker, job, last, 1, hold(long/4))
				attempt := 2
				switch name {
				case "undone":
					attempt = 1
					t.ok("undo", q.settlements(dibs.Settlement{Key: k, Token: worker, Redeems: job, Outcome: dibs.Undo})[0])
				case "undone by its lease":
					attempt = 1
					t.ok("undo", q.undo(k, worker))
				case "abandoned":
					t.ok("abandon", q.abandon(k, worker))
				case "run out":
					t.ok("the last renewal", q.renew(k, worker, t.short()))
					t.outlast(t.short())
				}
				t.lost("renew by the worker, "+name, q.renew(k, worker, long))
				before := time.Now()
				d := q.queue(k, b)
				t.waits("the waiter, after the lease was "+name, d, 1)
				t.kept("the waiter", d, before, long/4)
				next := dibs.NewToken()
				fence := t.granted("the next worker", q.try(k, next, from(job)), attempt)
				t.ok("its release", q.release(k, next))
				heard.told("the waiter", b, fence, 1)
			}
		},
	},
	{
		Name:     "ToldRedeemersGrantLapses",
		Why:      "A worker that is told its grant and never heard of again has died. A turn later its grant has lapsed and counts as abandoned, and its job's place stands again.",
		Needs:    []Feature{GrantNotifier},
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, job, worker, b := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("a waiter behind it", q.queue(k, b), 1)
			last := t.waitsAt("the worker", q.try(k, worker, from(job), hold(long/4)), 0)
			t.ok("release", p.release(k, a))
			if _, told := heard.turn("the worker", k, worker, job, last, 1, hold(long/4)); told {
				t.outlast(t.turn)
			} else {
				t.ok("the last renewal", q.renew(k, worker, t.short()))
				t.outlast(t.short())
			}
			t.lost("renew by the worker", q.renew(k, worker, long))
			before := time.Now()
			d := q.queue(k, b)
			t.waits("the waiter, behind the place", d, 1)
			t.kept("the waiter", d, before, long/4)
			t.granted("the next worker", p.try(k, dibs.NewToken(), from(job)), 2)
		},
	},
	{
		Name:     "AtMostOnceRedeemerIsNotTold",
		Why:      "A claim that must not run twice begins nothing on a word that may not be heard, at a place as anywhere. Its place is woken, and stands until it asks.",
		Needs:    []Feature{GrantNotifier},
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, job, worker := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("one that must not run twice", q.try(k, worker, from(job), atMostOnce), 0)
			t.ok("release", p.release(k, a))
			heard.woken("its place", job)
			t.outlast(t.turn)
			t.granted("the one that must not run twice", q.try(k, worker, from(job), atMostOnce), 1)
		},
	},
	{
		Name:  "RedeemerWaitsForAnother",
		Why:   "Of two workers of one job the second waits for the first. It has its turn when that one did not finish, and must know if that one had begun.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			for attempt, end := range map[int]func(dibs.Key, dibs.Token) error{1: p.undo, 2: p.abandon} {
				k, job, first, second := key("attempt "+itoa(attempt)), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				heard.ready(k)
				t.waits("reserving", p.reserve(k, job), 0)
				t.granted("the first worker", p.try(k, first, from(job)), 1)
				last := t.waitsAt("the second worker", q.try(k, second, from(job)), 0)
				t.ok("the first worker's end", end(k, first))
				heard.turn("the second worker", k, second, job, last, attempt)
				t.waits("the first worker, again", p.try(k, dibs.NewToken(), from(job)), 0)
				t.ok("the second worker's renewal", q.renew(k, second, long))
				t.ok("the second worker's release", q.release(k, second))
				t.state("a look after that", p.look(k), dibs.Free)
			}
		},
	},
	{
		Name:  "RedeemerLeavesItsOwnPlace",
		Why:   "A token is in one place at most, also one that is granted from a place in front while it waits at the end.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, job, worker, b := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("the worker, queueing", q.queue(k, worker), 1)
			t.waits("the last", q.queue(k, b), 2)
			last := t.waitsAt("the worker, from the place", q.try(k, worker, from(job)), 0)
			t.ok("release", p.release(k, a))
			fence, _ := heard.turn("the worker", k, worker, job, last, 1)
			t.waits("the last", q.queue(k, b), 0)
			t.ok("the worker's release", q.release(k, worker))
			heard.told("the last", b, fence, 1)
			t.ok("the last one's release", q.release(k, b))
			t.state("a look after that", p.look(k), dibs.Free)
		},
	},
	{
		Name:  "RedeemerThatMustAskIsWoken",
		Why:   "A grant in absence is what the claim would get if it were made again. Where that is another answer the place is woken, and the claim is made again.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, job, worker, b := key("answered"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job), 0)
			t.waits("one that wants an answer", q.try(k, worker, from(job), answerable), 0)
			t.waits("a waiter behind it", q.queue(k, b), 1)
			t.ok("keep", p.keep(k, a, "answer"))
			heard.woken("its place", job)
			t.done("the one that wants an answer", q.try(k, worker, from(job), answerable), "answer")
			heard.told("the waiter", b, last, 1)

			k, a, job, worker = key("clash"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			other, this := dibs.NewToken(), dibs.NewToken()
			last = max(t.granted("a holder", p.try(k, a, permits(2)), 1), t.granted("another", p.try(k, other, permits(2)), 1))
			t.waits("one that does this", q.queue(k, this, permits(2), asked("this")), 0)
			t.waits("reserving", p.reserve(k, job, permits(2)), 1)
			t.waits("one that does that", q.try(k, worker, from(job), permits(2), asked("that")), 1)
			t.ok("release", p.release(k, a))
			heard.told("the one that does this", this, last, 1)
			t.ok("its renewal", q.renew(k, this, long))
			t.ok("release", p.release(k, other))
			heard.woken("the place of the one that does that", job)
			t.state("the one that does that", q.try(k, worker, from(job), permits(2), asked("that")), dibs.Mismatch)
		},
	},
	{
		Name:  "PlaceStaysWithItsLease",
		Why:   "Two permits come free at once, and go to a worker that waits at its job's place and to whoever is behind it. The place is the worker's: when the other one is done, a worker that failed still has it.",
		Needs: []Feature{GrantNotifier, Inspector},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, b, job, worker, c := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			t.granted("a holder", p.try(k, a, permits(2)), 1)
			t.granted("another", p.try(k, b, permits(2)), 1)
			t.waits("reserving", p.reserve(k, job, permits(2)), 0)
			t.waits("a waiter behind it", q.queue(k, c, permits(2)), 1)
			last := t.waitsAt("the worker", q.try(k, worker, from(job), permits(2)), 0)
			t.count("evicting both holders", 2)(p.inspect().Evict(t.Context(), k, ""))
			fence, _ := heard.turn("the worker", k, worker, job, last, 1, permits(2))
			t.ok("the worker's renewal", q.renew(k, worker, long))
			heard.told("the waiter", c, fence, 1)
			t.ok("the waiter's release", q.release(k, c))
			t.ok("undoing the worker's lease", q.undo(k, worker))
			t.state("a stranger, before the place", p.try(k, dibs.NewToken(), permits(2)), dibs.Held)
			t.granted("the job's next worker", p.try(k, dibs.NewToken(), from(job), permits(2)), 1)
		},
	},
	{
		Name:  "RedeemersUnderLoad",
		Why:   "Many jobs whose workers begin as soon as they are told, and some of which give up when they may just have been, must still be alone, one after the other.",
		Needs: []Feature{GrantNotifier},
		Heavy: true,
		Check: func(t *Trial) {
			const callers, rounds = 6, 12
			procs := []*process{t.process(), t.process(), t.process()}
			heard := make([]*grantListener, len(procs))
			for i, p := range procs {
				heard[i] = p.listenGrants()
			}
			k := key("k")
			var inside, told atomic.Int64
			var highest atomic.Uint64
			var running sync.WaitGroup
			for i := range callers {
				p, heard := procs[i%len(procs)], heard[i%len(procs)]
				running.Go(func() {
					for round := range rounds {
						job, worker := dibs.NewToken(), dibs.NewToken()
						procs[(i+1)%len(procs)].reserve(k, job)
						if round%3 == 0 && p.try(k, worker, from(job)).State == dibs.Held {
							p.settlements(dibs.Settlement{Key: k, Token: worker, Redeems: job, Outcome: dibs.Undo})
							worker = dibs.NewToken()
						}
						var d dibs.Answer
						t.poll("a turn", func() bool {
							// See GrantsUnderLoad for what of a word counts.
							heard.forget(worker)
							heard.forget(job)
							asked := time.Now()
							if d = p.try(k, worker, from(job)); d.State == dibs.Granted {
								return true
							}
							_, got, ok := heard.first(dibs.Turn/2, worker, job)
							if !ok || got.State != dibs.Granted || got.Fence <= d.Fence || time.Since(asked) > t.turn*3/4 {
								return false
							}
							told.Add(1)
							d = got
							return true
						})
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d holders at once", n)
						}
						if last := highest.Swap(d.Fence); last >= d.Fence {
							t.Errorf("the fence %d came after %d", d.Fence, last)
						}
						inside.Add(-1)
						if err := p.release(k, worker); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
			running.Wait()
			t.Logf("of %d grants %d were told", callers*rounds, told.Load())
		},
	},
}

// turn waits until a worker that waits at its job's place is told its grant, or is
// woken, by the place's token, and granted when it asks. It fails the trial unless
// that is such an attempt, above that fence, and returns its fence, and how it was.
func (l *grantListener) turn(what string, k dibs.Key, worker, job dibs.Token, above uint64, attempt int, edits ...edit) (fence uint64, told bool) {
	l.t.Helper()
	who, a, ok := l.first(limit, worker, job)
	switch {
	case !ok:
		l.t.Fatalf("%s: neither told nor woken within %v", what, limit)
	case a.State == dibs.Granted && who == job:
		l.t.Fatalf("%s: the grant was told by the place's token", what)
	case a.State == dibs.Granted:
		return l.told(what, worker, above, attempt), true
	}
	l.forget(who)
	return l.t.granted(what+", woken", l.p.try(k, worker, append(edits, from(job))...), attempt), false
}
