package storetest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

var grantProperties = []Property{
	{
		Name:  "GrantIsTold",
		Why:   "A waiter that is told its grant begins a message after the release, without asking. What it is told must be its lease: with a fence above all before it, and nothing abandoned.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			for name, end := range map[string]func(dibs.Key, dibs.Token) error{
				"release": p.release,
				"keep":    func(k dibs.Key, a dibs.Token) error { return p.keep(k, a, "answer") },
				"undo":    p.undo,
			} {
				k, a, b, c := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				heard.ready(k)
				last := t.granted("the holder", p.try(k, a), 1)
				last = max(last, t.waitsAt("the first waiter", q.queue(k, b), 0))
				last = max(last, t.waitsAt("the second waiter", q.queue(k, c), 1))
				t.ok(name, end(k, a))
				told := heard.told("the first waiter, after a "+name, b, last, 1)
				t.state("a look", p.look(k), dibs.Held)
				t.state("a stranger", p.try(k, dibs.NewToken()), dibs.Held)
				if again := t.granted("the first waiter, asking all the same", q.queue(k, b), 1); again != told {
					t.Fatalf("the first waiter was told the fence %d and holds with %d", told, again)
				}
				if heard.has(c) {
					t.Fatal("the second waiter was told something before its turn")
				}
				t.ok("the first waiter's release", q.release(k, b))
				heard.told("the second waiter", c, told, 1)
				t.ok("the second waiter's release", q.release(k, c))
				t.state("a look after that", p.look(k), dibs.Free)
			}
		},
	},
	{
		Name:  "GivingUpTellsTheNext",
		Why:   "A turn that is given up, also by one that was told of it, is the next one's at once, and nothing was abandoned.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p := t.process()
			heard := p.listenGrants()
			k, a, ws := key("k"), dibs.NewToken(), tokens(3)
			heard.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			for i, w := range ws {
				t.waits("waiter "+itoa(i), p.queue(k, w), i)
			}
			t.ok("release", p.release(k, a))
			last = heard.told("waiter 0", ws[0], last, 1)
			t.ok("waiter 0 undoes it", p.undo(k, ws[0]))
			last = heard.told("waiter 1", ws[1], last, 1)
			t.ok("waiter 1 releases", p.release(k, ws[1]))
			heard.told("waiter 2", ws[2], last, 1)
			t.ok("waiter 2 undoes it", p.undo(k, ws[2]))
			t.lost("waiter 2 undoes it again", p.undo(k, ws[2]))
			t.granted("a stranger", p.try(k, dibs.NewToken()), 1)
		},
	},
	{
		Name:  "ToldGrantIsALease",
		Why:   "Who is told its grant works, renews and settles without ever claiming again. All of it must do what it does for one that claimed.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			// hold makes b the holder of a key by a told grant alone.
			hold := func(name string) (k dibs.Key, b dibs.Token) {
				k, a, b := key(name), dibs.NewToken(), dibs.NewToken()
				heard.ready(k)
				last := t.granted("the holder", p.try(k, a, asked("this")), 1)
				t.waits("the waiter", q.queue(k, b, asked("this"), answerable), 0)
				t.ok("release", p.release(k, a))
				heard.told("the waiter", b, last, 1)
				return k, b
			}

			k, b := hold("release")
			t.ok("its release", q.release(k, b))
			t.lost("its second release", q.release(k, b))
			t.granted("the next", p.try(k, dibs.NewToken()), 1)

			k, b = hold("keep")
			t.ok("its record", q.keep(k, b, "answer"))
			t.ok("its record, sent twice", q.keep(k, b, "answer"))
			t.done("a duplicate", p.try(k, dibs.NewToken(), asked("this"), answerable), "answer")
			t.state("another that reuses the key", p.try(k, dibs.NewToken(), asked("that"), answerable), dibs.Mismatch)

			k, b = hold("mismatch")
			t.state("another that reuses the key", p.try(k, dibs.NewToken(), asked("that"), answerable), dibs.Mismatch)
			t.ok("its release", q.release(k, b))

			k, b = hold("undo")
			t.ok("undoing it", q.undo(k, b))
			t.granted("the next", p.try(k, dibs.NewToken()), 1)

			k, b = hold("abandon")
			t.ok("progress", q.save(k, b, long, "half"))
			t.ok("abandoning it", q.abandon(k, b))
			d := p.try(k, dibs.NewToken())
			if t.granted("the next", d, 2); string(d.Progress) != "half" {
				t.Fatalf("the next got the progress %q, want %q", d.Progress, "half")
			}

			k, b = hold("renew")
			before := time.Now()
			t.ok("its renewal", q.renew(k, b, 2*long))
			t.kept("a stranger", p.try(k, dibs.NewToken()), before, 2*long)
			t.ok("its second renewal", q.renew(k, b, long))
			t.ok("its release", q.release(k, b))
			t.granted("the next", p.try(k, dibs.NewToken()), 1)

			k, b = hold("renew for a short time")
			t.ok("its renewal", q.renew(k, b, t.short()))
			t.outlast(t.short())
			t.granted("the next", p.try(k, dibs.NewToken()), 2)
		},
	},
	{
		Name:     "ToldGrantLapses",
		Why:      "Whether somebody has begun on a grant that was told, nobody knows until it is heard of. So it lasts one turn, no longer and no shorter, and counts as abandoned then.",
		Needs:    []Feature{GrantNotifier},
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, silent, next := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("one that will be silent", q.queue(k, silent), 0)
			t.waits("the next", p.queue(k, next), 1)
			before := time.Now()
			t.ok("release", p.release(k, a))
			after := time.Now()
			told := heard.told("the silent one", silent, last, 1)
			var taken uint64
			t.ends("the told grant", before, after, t.turn, func() bool {
				d := p.queue(k, next)
				if d.State == dibs.Held {
					return false
				}
				taken = t.granted("the next", d, 2)
				return true
			})
			if taken <= told {
				t.Fatalf("the next has the fence %d, not above the %d that was told before", taken, told)
			}
			t.lost("renewing what has run out", q.renew(k, silent, long))
			t.lost("a record of what has run out", q.keep(k, silent, "late"))
			// Should the word have come late, the fence tells that it is old.
			if d := t.waitsAt("the silent one, joining anew", q.queue(k, silent), 0); d < taken {
				t.Fatalf("told the highest fence %d, there was %d", d, taken)
			}
			t.ok("the next one's release", p.release(k, next))
			heard.told("the one that was silent", silent, taken, 1)
		},
	},
	{
		Name:     "AtMostOnceIsNotTold",
		Why:      "If a grant that nobody heard of lapses, it is abandoned. A claim that must not run twice would leave an unknown outcome, though nothing ran. It is woken and asks.",
		Needs:    []Feature{GrantNotifier},
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, b, c, d := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			t.granted("the holder", p.try(k, a, answerable), 1)
			t.waits("one that will not come", q.queue(k, b, atMostOnce, answerable), 0)
			t.ok("release", p.release(k, a))
			heard.woken("the one that does not come", b)
			t.outlast(t.turn)
			t.granted("another, a turn later", p.try(k, c, answerable), 1)
			t.waits("one that will come", q.queue(k, d, atMostOnce, answerable), 0)
			t.ok("release", p.release(k, c))
			heard.woken("the one that comes", d)
			t.granted("the one that comes", q.queue(k, d, atMostOnce, answerable), 1)
			t.ok("its release", q.release(k, d))
		},
	},
	{
		Name:  "HeirHearsOfTheAbandoned",
		Why:   "Who comes after a holder that died must know how often the work was begun and how far it got. If the word of the grant cannot tell, it is a mere wake-up.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			for name, progress := range map[string]string{"began": "", "half": "half"} {
				k, a, b, c := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				heard.ready(k)
				t.granted("the holder", p.try(k, a), 1)
				if progress != "" {
					t.ok("progress", p.save(k, a, long, progress))
				}
				t.waits("the heir", q.queue(k, b), 0)
				t.waits("the one behind", q.queue(k, c), 1)
				t.ok("abandon", p.abandon(k, a))
				if d := heard.wait("the heir", b); d.State == dibs.Granted && (d.Attempt != 2 || string(d.Progress) != progress) {
					t.Fatalf("the heir is told of attempt %d and progress %q, want 2 and %q", d.Attempt, d.Progress, progress)
				}
				d := q.queue(k, b)
				if t.granted("the heir", d, 2); string(d.Progress) != progress {
					t.Fatalf("the heir got the progress %q, want %q", d.Progress, progress)
				}
				t.ok("the heir's release", q.release(k, b))
				heard.told("the one behind", c, d.Fence, 1)
			}
		},
	},
	{
		Name:  "HeldAnswersHaveTheFence",
		Why:   "A word that was long on its way must be known for old: its grant is not above the last answer. One that is told after that answer is.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, b, c, r := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			// all asks in every way and returns the highest fence that was answered.
			all := func(when string, waiter dibs.Token) uint64 {
				t.Helper()
				highest := uint64(0)
				for i, d := range []dibs.Answer{
					q.queue(k, waiter), p.reserve(k, r), q.try(k, dibs.NewToken(), from(r)),
					p.try(k, dibs.NewToken()), p.look(k),
				} {
					how := []string{"a waiter", "a reserved place", "a claim from it", "a try", "a look"}[i]
					t.state(how+", "+when, d, dibs.Held)
					if d.Fence < last {
						t.Fatalf("%s, %s: told the highest fence %d, there was %d", how, when, d.Fence, last)
					}
					highest = max(highest, d.Fence)
				}
				return highest
			}
			t.waits("the first waiter", q.queue(k, b), 0)
			highest := all("while it is held", c)
			t.ok("release", p.release(k, a))
			last = heard.told("the first waiter", b, highest, 1)
			highest = all("after a grant was told", c)
			t.ok("the first waiter's release", q.release(k, b))
			last = heard.told("the second waiter", c, highest, 1)
			t.ok("the second waiter's renewal", q.renew(k, c, long))
			t.waits("the first waiter, anew", q.queue(k, b), 1)
			t.ok("giving the reserved place up", p.release(k, r))
			highest = all("after another was told", b)
			t.ok("giving the reserved place up", p.release(k, r))
			t.ok("the second waiter's release", q.release(k, c))
			heard.told("the first waiter", b, highest, 1)
		},
	},
	{
		Name:  "HeldFenceAfterWipe",
		Why:   "A word of a grant that the backend has lost since must not be believed. Nobody may hold the key yet when its waiter asks again.",
		Needs: []Feature{GrantNotifier, Wipe},
		Check: func(t *Trial) {
			p := t.process()
			heard := p.listenGrants()
			k, a, b := key("k"), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("the waiter", p.queue(k, b), 0)
			t.ok("release", p.release(k, a))
			last = heard.told("the waiter", b, last, 1)
			heard.stop()
			t.outlast(0) // fences rise above those before the loss because time has passed
			p = t.wipe()
			p.reserve(k, dibs.NewToken())
			if d := t.waitsAt("the waiter, behind a reserved place", p.queue(k, b), 1); d < last {
				t.Fatalf("told the highest fence %d, there was %d before the loss", d, last)
			}
		},
	},
	{
		Name:  "GrantsArePermits",
		Why:   "Where several may hold a key, as many are told as there are free permits, in their order, each with a fence of its own.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			const n = 3
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, holders, ws := key("k"), tokens(n), tokens(n+1)
			heard.ready(k)
			var last uint64
			for _, h := range holders {
				last = max(last, t.granted("a holder", p.try(k, h, permits(n)), 1))
			}
			for i, w := range ws {
				t.waits("waiter "+itoa(i), q.queue(k, w, permits(n)), i)
			}
			for i, h := range holders {
				t.ok("release", p.release(k, h))
				last = heard.told("waiter "+itoa(i), ws[i], last, 1)
				t.waits("the last waiter", q.queue(k, ws[n], permits(n)), n-1-i)
			}
			if heard.has(ws[n]) {
				t.Fatal("the last waiter was told something while all permits were taken")
			}
			for i := range n {
				t.ok("the renewal of waiter "+itoa(i), q.renew(k, ws[i], long))
			}
			t.state("a stranger", p.try(k, dibs.NewToken(), permits(n)), dibs.Held)
			t.ok("release", q.release(k, ws[1]))
			heard.told("the last waiter", ws[n], last, 1)
			for _, w := range []dibs.Token{ws[0], ws[2], ws[n]} {
				t.ok("release", q.release(k, w))
			}
			t.state("a look after that", p.look(k, permits(n)), dibs.Free)
		},
	},
	{
		Name:  "ClashIsNotTold",
		Why:   "Two who wait for one of several permits may come to hold at once what neither would have been granted beside the other. The second one has to ask.",
		Needs: []Feature{GrantNotifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, b, this, that := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			last := max(t.granted("a holder", p.try(k, a, permits(2)), 1), t.granted("another", p.try(k, b, permits(2)), 1))
			t.waits("one that does this", q.queue(k, this, permits(2), asked("this")), 0)
			t.waits("one that does that", q.queue(k, that, permits(2), asked("that")), 1)
			t.ok("release", p.release(k, a))
			heard.told("the one that does this", this, last, 1)
			t.ok("its renewal", q.renew(k, this, long))
			t.ok("release", p.release(k, b))
			heard.woken("the one that does that", that)
			t.ok("the first one's release", q.release(k, this))
		},
	},
	{
		Name:     "WakeUpsAreNoGrants",
		Why:      "A process that listens for wake-ups alone begins nothing by itself: its waiters are offered the key, and a turn that they do not take leaves nothing behind.",
		Needs:    []Feature{GrantNotifier},
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			woken := q.listen()
			k, a, b := key("k"), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("the waiter", q.queue(k, b), 0)
			t.ok("release", p.release(k, a))
			woken.wait("the waiter", b)
			t.outlast(t.turn)
			t.granted("a stranger, a turn later", p.try(k, dibs.NewToken()), 1)
		},
	},
	{
		Name:     "ReservedPlaceIsNotTold",
		Why:      "A reserved place waits for somebody who redeems it. A grant that is told to it, or to a claim that was made from it, would run out while nobody works.",
		Needs:    []Feature{GrantNotifier},
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listenGrants()
			k, a, job, worker, b := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			heard.ready(k)
			t.granted("the holder", p.try(k, a), 1)
			t.waits("the job", p.reserve(k, job), 0)
			t.waits("the waiter behind it", q.queue(k, b), 1)
			t.waits("its worker", q.try(k, worker, from(job)), 0)
			t.ok("release", p.release(k, a))
			heard.woken("the job's worker", job)
			t.outlast(t.turn)
			fence := t.granted("the worker", q.try(k, worker, from(job)), 1)
			if heard.has(worker) || heard.has(b) {
				t.Fatal("the worker, by its own token, or the waiter behind the job was told something")
			}
			t.ok("the worker's release", q.release(k, worker))
			heard.told("the waiter behind it", b, fence, 1)
		},
	},
	{
		Name:     "GrantsStop",
		Why:      "A client that was closed begins nothing: it must not be told, and the waiters of those that go on are.",
		Needs:    []Feature{GrantNotifier},
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			stopped, going := q.listenGrants(), q.listenGrants()
			k, a, b, c := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			going.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("the waiter", q.queue(k, b), 0)
			stopped.stop()
			t.ok("release", p.release(k, a))
			last = going.told("the waiter, by the other listener", b, last, 1)
			t.state("the waiter", q.queue(k, b), dibs.Granted) // anew, if its turn is over
			if stopped.has(b) {
				t.Error("a listener was told after it was stopped")
			}

			t.waits("another", q.queue(k, c), 0)
			going.stop()
			t.waits("another, once nobody can take a grant", q.queue(k, c), 0)
			t.ok("release", q.release(k, b))
			t.outlast(t.turn)
			if d := t.granted("a stranger, a turn later", p.try(k, dibs.NewToken()), 1); d <= last {
				t.Fatalf("the stranger's fence is %d, after %d", d, last)
			}
			if going.has(c) {
				t.Error("the other listener was told after it was stopped")
			}
		},
	},
	{
		Name:  "GrantsUnderLoad",
		Why:   "Many waiters in several processes that begin as soon as they are told, and never ask when they are, must still be alone, one after the other.",
		Needs: []Feature{GrantNotifier},
		Heavy: true,
		Check: func(t *Trial) {
			const callers, rounds = 6, 20
			procs := []*process{t.process(), t.process(), t.process()}
			heard := make([]*grantListener, len(procs))
			for i, p := range procs {
				heard[i] = p.listenGrants()
			}
			k := key("k")
			var inside, told atomic.Int64
			var highest atomic.Uint64
			var running sync.WaitGroup
			first := dibs.NewToken()
			highest.Store(t.granted("the first holder", procs[0].try(k, first), 1))
			for i := range callers {
				p, heard := procs[i%len(procs)], heard[i%len(procs)]
				running.Go(func() {
					for range rounds {
						w := dibs.NewToken()
						var d dibs.Answer
						t.poll("a turn", func() bool {
							// As a client does: the word counts if it is newer than the
							// last answer, and for a turn from when that was asked for.
							heard.forget(w)
							asked := time.Now()
							if d = p.queue(k, w); d.State == dibs.Granted {
								return true
							}
							got, ok := heard.within(w, dibs.Turn/2)
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
						if err := p.release(k, w); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
			t.poll("all of them wait", func() bool { return procs[0].look(k).Ahead >= callers })
			t.ok("the first release", procs[0].release(k, first))
			running.Wait()
			if told.Load() == 0 && t.h.Virtual { // in real time each may have come late
				t.Errorf("of %d grants none was told", callers*rounds)
			}
		},
	},
}
