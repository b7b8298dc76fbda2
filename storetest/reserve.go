package storetest

import (
	"time"

	"github.com/dibs-go/dibs"
)

var reserveProperties = []Property{
	{
		Name:     "ReservedPlaceBlocks",
		Why:      "A job's place is taken when it is enqueued. Until the job runs nobody who came later may pass it, though nobody holds the key.",
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, reserved, b := key("k"), dibs.NewToken(), dibs.NewToken()
			t.waits("reserving a free key", p.reserve(k, reserved), 0)
			t.waits("reserving it again", q.reserve(k, reserved), 0)
			t.state("a stranger that tries", q.try(k, dibs.NewToken()), dibs.Held)
			t.state("a stranger that looks", q.look(k), dibs.Held)
			t.waits("a stranger that queues", q.queue(k, b), 1)
			t.outlast(t.turn)
			t.waits("the stranger, after longer than a turn", q.queue(k, b), 1)
			t.granted("the job, in another process", q.try(k, reserved), 1)
			t.waits("the stranger", q.queue(k, b), 0)
			t.ok("the job's end", p.release(k, reserved))
			t.granted("the stranger", q.queue(k, b), 1)
		},
	},
	{
		Name:     "ReservedPlaceIsNotGranted",
		Why:      "When its turn comes a reserved place is not granted: nobody is there to confirm, and the turn would be over before the job starts. It stands until it is redeemed.",
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, reserved, b := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, reserved), 0)
			t.waits("a waiter", q.queue(k, b), 1)
			t.ok("release", p.release(k, a))
			t.waits("reserving again, when its turn has come", p.reserve(k, reserved), 0)
			t.outlast(t.turn)
			t.state("a stranger, after longer than a turn", q.try(k, dibs.NewToken()), dibs.Held)
			t.waits("the waiter", q.queue(k, b), 1)
			t.granted("the job", q.queue(k, reserved), 1)
		},
	},
	{
		Name: "ReservedPlacesKeepTheOrder",
		Why:  "Reserved places and waiting ones are one queue.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, ws := key("k"), tokens(4)
			t.waits("the first, reserved", p.reserve(k, ws[0]), 0)
			t.waits("the second, waiting", q.queue(k, ws[1]), 1)
			t.waits("the third, reserved", p.reserve(k, ws[2]), 2)
			t.waits("the fourth, waiting", q.queue(k, ws[3]), 3)
			t.waits("the third, redeemed too early", q.try(k, ws[2]), 2)
			for i, w := range ws {
				t.granted("number "+itoa(i+1), q.queue(k, w), 1)
				if i+1 < len(ws) {
					t.state("the one behind", q.try(k, ws[i+1]), dibs.Held)
				}
				t.ok("its release", p.release(k, w))
			}
		},
	},
	{
		Name:     "RedeemedPlaceWaits",
		Why:      "A job that starts before its turn waits in its place like anybody else, and is then granted in its absence.",
		TurnEnds: true,
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, reserved, b := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, reserved), 0)
			t.waits("a waiter", p.queue(k, b), 1)
			t.waits("the job, redeeming", q.queue(k, reserved), 0)
			before := time.Now()
			t.ok("release", p.release(k, a))
			// Now it is a turn like any other, so it also lapses.
			t.ends("the job's turn", before, time.Now(), t.turn, func() bool {
				return p.queue(k, b).State == dibs.Granted
			})
		},
	},
	{
		Name: "ReservedPlaceRunsOut",
		Why:  "A job that never starts blocks the key no longer than its place lasts; reserving again prolongs that.",
		Check: func(t *Trial) {
			p := t.process()
			t.inTime("prolonged", func(k dibs.Key, d time.Duration) bool {
				reserved, b := dibs.NewToken(), dibs.NewToken()
				before := time.Now()
				t.waits("reserving", p.reserve(k, reserved, place(d)), 0)
				again := p.reserve(k, reserved)
				if time.Since(before) >= d {
					return false
				}
				t.waits("reserving for longer", again, 0)
				t.waits("a waiter", p.queue(k, b), 1)
				t.outlast(d)
				t.waits("the waiter, after the first place's end", p.queue(k, b), 1)
				before = time.Now()
				t.waits("reserving for a short time", p.reserve(k, reserved, place(t.short())), 0)
				t.ends("the place", before, time.Now(), t.short(), func() bool {
					d := p.queue(k, b)
					if d.State == dibs.Held {
						return false
					}
					t.granted("the waiter", d, 1)
					return true
				})
				t.lost("settling the place", p.release(k, reserved))
				return true
			})
		},
	},
	{
		Name: "ReservedPlaceIsGivenUp",
		Why:  "A job that is cancelled before it runs settles its token, and those behind move up in that step.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, reserved, b := key("k"), dibs.NewToken(), dibs.NewToken()
			t.waits("reserving", p.reserve(k, reserved), 0)
			t.waits("a waiter", p.queue(k, b), 1)
			t.ok("the job is cancelled", q.release(k, reserved))
			t.state("a stranger", q.try(k, dibs.NewToken()), dibs.Held)
			t.granted("the waiter", p.queue(k, b), 1)
			t.ok("its release", p.release(k, b))

			t.waits("reserving alone", p.reserve(k, dibs.NewToken(), place(t.short())), 0)
			t.outlast(t.short())
			t.granted("a stranger, after it ran out", q.try(k, dibs.NewToken()), 1)
		},
	},
	{
		Name: "ReservedPlaceBlocksPermits",
		Why:  "A key with several permits has one queue too: a reserved place at its head holds back those behind it, although permits are free, and lets them go in the step in which it is redeemed.",
		Check: func(t *Trial) {
			p := t.process()
			k, a, reserved, b, c := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("a holder", p.try(k, a, permits(3)), 1)
			t.waits("reserving", p.reserve(k, reserved, permits(3)), 0)
			t.waits("a waiter", p.queue(k, b, permits(3)), 1)
			t.waits("another waiter", p.queue(k, c, permits(3)), 2)
			t.state("a stranger", p.try(k, dibs.NewToken(), permits(3)), dibs.Held)
			t.granted("the job", p.try(k, reserved, permits(3)), 1)
			t.waits("the other waiter, now the next", p.queue(k, c, permits(3)), 0)
			t.granted("the waiter", p.queue(k, b, permits(3)), 1)
			t.state("a stranger", p.try(k, dibs.NewToken(), permits(3)), dibs.Held)
		},
	},
}
