package storetest

import (
	"time"

	"github.com/dibs-go/dibs"
)

var fenceProperties = []Property{
	{
		Name: "FencesRise",
		Why:  "A fence tells what a holder wrote from what an earlier one, frozen and now awake, is about to write. It does so only if every grant's fence is above all before it, however the lease before ended.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k := key("k")
			var last uint64
			rises := func(what string, a dibs.Answer) {
				t.Helper()
				t.state(what, a, dibs.Granted)
				if a.Fence <= last {
					t.Fatalf("%s: the fence %d does not rise above the last one, %d", what, a.Fence, last)
				}
				last = a.Fence
			}
			for range 5 {
				for i, p := range []*process{p, q} {
					a := dibs.NewToken()
					rises("after a release", p.try(k, a))
					t.ok("release", p.release(k, a))
					a = dibs.NewToken()
					rises("after another release", p.try(k, a))
					if i == 0 {
						t.ok("abandon", p.abandon(k, a))
					} else {
						t.ok("keep", p.keep(k, a, "answer"))
					}
				}
			}
			rises("after a record", p.try(k, dibs.NewToken(), ttl(t.short())))
			t.outlast(t.short())
			a, b := dibs.NewToken(), dibs.NewToken()
			rises("after a lease ran out", q.try(k, a))
			t.waits("a waiter", p.queue(k, b), 0)
			t.ok("release", q.release(k, a))
			rises("after a hand-over", p.queue(k, b))
		},
	},
	{
		Name:  "FencesRiseAfterWipe",
		Why:   "A backend that loses its data, or is restored from a backup, must not give out again the fences that the world has seen: the newest holder's writes would be refused as stale, and an old one's accepted.",
		Needs: []Feature{Wipe},
		Check: func(t *Trial) { t.rises(t.wipe) },
	},
	{
		Name:  "FencesRiseAfterRestart",
		Why:   "A restart is the usual time for an old holder to come back. What it writes must be told from what comes after.",
		Needs: []Feature{Restart},
		Check: func(t *Trial) { t.rises(t.restart) },
	},
}

// rises checks that fences rise across what happens to the backend. It lets some time
// pass, so that a fence may be the time of its grant in microseconds.
func (t *Trial) rises(happens func() *process) {
	t.Helper()
	p := t.process()
	last := map[dibs.Key]uint64{}
	for range 3 {
		for i := range 60 {
			k, a := key("k"+itoa(i%3)), dibs.NewToken()
			fence := t.granted("a grant", p.try(k, a), 1)
			if fence <= last[k] {
				t.Fatalf("the fence %d does not rise above the last one, %d", fence, last[k])
			}
			last[k] = fence
			t.ok("release", p.release(k, a))
		}
		time.Sleep(10 * time.Millisecond)
		p = happens()
	}
}
