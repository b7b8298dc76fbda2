package storetest

import (
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

var turnProperties = []Property{
	{
		Name:     "UnconfirmedTurnLapses",
		Why:      "A waiter that is granted in its absence and does not come has died or is frozen. It gets about a second, then the next one's turn has come. Nothing was run, so nothing was abandoned.",
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, absent, next, last := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("one that will not come", p.queue(k, absent), 0)
			t.waits("the next", q.queue(k, next), 1)
			before := time.Now()
			t.ok("release", p.release(k, a))
			t.ends("the absent one's turn", before, time.Now(), t.turn, func() bool {
				d := q.queue(k, next)
				if d.State == dibs.Held {
					return false
				}
				t.granted("the next", d, 1)
				return true
			})
			t.lost("renew by the absent one", p.renew(k, absent, long))
			if d := p.try(k, absent); d.State != dibs.Held || d.Queued {
				t.Fatalf("the absent one, trying: %s, Queued %v, want Held without a place", stateName(d.State), d.Queued)
			}
			t.waits("another", q.queue(k, last), 0)
			t.waits("the absent one, joining anew", p.queue(k, absent), 1)
			t.ok("the other one gives up", q.release(k, last))
			t.ok("release by the next", q.release(k, next))
			t.granted("the absent one", p.queue(k, absent), 1)
		},
	},
	{
		Name:     "LastTurnLapses",
		Why:      "If the only waiter does not come, the key is free again, as if it had never waited.",
		TurnEnds: true,
		Check: func(t *Trial) {
			p := t.process()
			k, a, absent := key("k"), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("one that will not come", p.queue(k, absent, asked("this")), 0)
			before := time.Now()
			t.ok("release", p.release(k, a))
			t.ends("its turn", before, time.Now(), t.turn, func() bool {
				d := p.try(k, dibs.NewToken())
				if d.State == dibs.Held {
					return false
				}
				t.granted("a stranger", d, 1)
				return true
			})
			t.lost("settling the turn", p.release(k, absent))
		},
	},
	{
		Name:     "ConfirmedTurnIsALease",
		Why:      "Who confirms its turn holds the key for its own TTL from then on, not for what was left of the turn.",
		TurnEnds: true,
		Check: func(t *Trial) {
			p := t.process()
			k, a, b := key("k"), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("the waiter", p.queue(k, b), 0)
			t.ok("release", p.release(k, a))
			// If its turn is over by now it is granted anew, which is to last as long.
			fence := t.granted("the waiter", p.queue(k, b), 1)
			t.outlast(t.turn)
			t.state("a stranger", p.try(k, dibs.NewToken()), dibs.Held)
			if again := t.granted("the waiter, asking again", p.queue(k, b), 1); again != fence {
				t.Fatalf("the waiter's fence changed from %d to %d", fence, again)
			}
			t.ok("its release", p.release(k, b))
		},
	},
	{
		Name: "TurnIsGivenUp",
		Why:  "A waiter that gives up may not know that its turn has come. The next one moves up at once, and still hears that the holder before them abandoned the key.",
		Check: func(t *Trial) {
			p := t.process()
			k, a, b, c := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.ok("progress", p.save(k, a, long, "half"))
			t.waits("the first waiter", p.queue(k, b), 0)
			t.waits("the second waiter", p.queue(k, c), 1)
			t.ok("abandon", p.abandon(k, a))
			t.ok("the first gives up", p.release(k, b))
			d := p.queue(k, c)
			if t.granted("the second", d, 2); string(d.Progress) != "half" {
				t.Fatalf("the second got the progress %q, want %q", d.Progress, "half")
			}
		},
	},
	{
		Name: "OwnTurnIsNoMismatch",
		Why:  "The fingerprint is compared with that of whoever else holds the key. A waiter that asks for something else than before has its own turn in front of it, and nobody's work.",
		Check: func(t *Trial) {
			p := t.process()
			for _, n := range []int{1, 2} {
				k, a, b, c := key(fmt.Sprint("permits: ", n)), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				t.granted("the holder", p.try(k, a, permits(n)), 1)
				for range n - 1 {
					t.granted("another holder", p.try(k, dibs.NewToken(), permits(n)), 1)
				}
				t.waits("the waiter", p.queue(k, b, permits(n), asked("this")), 0)
				t.waits("the next", p.queue(k, c, permits(n), asked("this")), 1)
				t.ok("release", p.release(k, a))
				own := func(c *dibs.Claim) { c.Token = b }
				t.state("the waiter, looking", p.look(k, own, permits(n), asked("that")), dibs.Free)
				t.granted("the waiter, asking for something else", p.queue(k, b, permits(n), asked("that")), 1)
				t.state("the next", p.queue(k, c, permits(n), asked("this")), dibs.Mismatch)
			}
		},
	},
	{
		Name:     "LapsedTurnKeepsTheAttempts",
		Why:      "A turn that nobody took tells nothing about the work: who comes next must still hear how often it was abandoned, and how far it got.",
		TurnEnds: true,
		Check: func(t *Trial) {
			p := t.process()
			k, a, absent := key("k"), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.ok("progress", p.save(k, a, long, "half"))
			t.waits("one that will not come", p.queue(k, absent), 0)
			t.ok("abandon", p.abandon(k, a))
			t.outlast(t.turn)
			var d dibs.Answer
			t.poll("the end of the turn", func() bool { // which may begin when somebody looks
				d = p.try(k, dibs.NewToken())
				return d.State != dibs.Held
			})
			if t.granted("a stranger", d, 2); string(d.Progress) != "half" {
				t.Fatalf("the stranger got the progress %q, want %q", d.Progress, "half")
			}
		},
	},
	{
		Name:     "DeadHolderAndAbsentWaiter",
		Why:      "A crash may take the holder and the first waiter with it. The second one gets its turn a second after the lease ran out.",
		TurnEnds: true,
		Check: func(t *Trial) {
			p := t.process()
			k, a, absent, next := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("one that will not come", p.queue(k, absent), 0)
			t.waits("the next", p.queue(k, next), 1)
			before := time.Now()
			t.ok("the last renewal", p.renew(k, a, t.short()))
			t.endsInSteps("the lease and the turn", before, time.Now(), t.short()+t.turn, func() bool {
				d := p.queue(k, next)
				if d.State == dibs.Held {
					return false
				}
				t.granted("the next", d, 2)
				return true
			})
		},
	},
}
