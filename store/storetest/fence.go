package storetest

import (
	"time"

	"github.com/dibs-go/dibs/store"
)

var fenceProperties = []Property{
	property("FencesRise",
		"A fence separates the writes of a holder from the late writes of an earlier one. So each grant's fence must be above all fences before it, however the last lease ended.", func(t *Trial) {
			p, q := t.process(), t.process()
			k := key("k")
			var last uint64
			rises := func(what string, a store.Answer) {
				t.Helper()
				t.state(what, a, store.Granted)
				if a.Fence <= last {
					t.Fatalf("%s: the fence %d does not rise above the last one, %d", what, a.Fence, last)
				}
				last = a.Fence
			}
			for range 5 {
				for i, p := range []*process{p, q} {
					a := store.NewToken()
					rises("after a release", p.try(k, a))
					t.ok("release", p.release(k, a))
					a = store.NewToken()
					rises("after another release", p.try(k, a))
					if i == 0 {
						t.ok("abandon", p.abandon(k, a))
					} else {
						t.ok("keep", p.keep(k, a, "answer"))
					}
				}
			}
			rises("after a record", p.try(k, store.NewToken(), ttl(t.short())))
			t.outlast(t.short())
			a, b := store.NewToken(), store.NewToken()
			rises("after a lease expired", q.try(k, a))
			t.waits("a waiter", p.queue(k, b), 0)
			t.ok("release", q.release(k, a))
			rises("after a hand-over", p.queue(k, b))
		}),
	property("FencesRiseAfterWipe",
		"A backend that lost its data must not grant old fences again. Otherwise resources refuse the writes of the newest holder and accept those of an old one.", func(t *Trial) { t.rises(t.wipe) }).needs(Wipe),
	property("FencesRiseAfterRestart",
		"Old holders often come back after a restart of the backend. Their fences must be lower than those granted after it.", func(t *Trial) { t.rises(t.restart) }).needs(Restart),
}

// rises checks that fences rise across what happens to the backend. It lets some time
// pass, so that a fence may be the time of its grant in microseconds.
func (t *Trial) rises(happens func() *process) {
	t.Helper()
	p := t.process()
	last := map[store.Key]uint64{}
	for range 3 {
		for i := range 60 {
			k, a := key("k"+itoa(i%3)), store.NewToken()
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
