package storetest

import (
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs"
)

var permitsProperties = []Property{
	{
		Name: "PermitsAreCounted",
		Why:  "A key with n permits has at most n holders. The one after that waits until one of them is done, whichever it is.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			for _, n := range []int{2, 3, 7} {
				k, hs, ws := key("k"+itoa(n)), tokens(n), tokens(3)
				fences := map[uint64]bool{}
				for _, h := range hs {
					fences[t.granted("a holder", p.try(k, h, permits(n)), 1)] = true
				}
				if len(fences) != n {
					t.Fatalf("%d grants had %d different fences", n, len(fences))
				}
				t.state("one too many", q.try(k, dibs.NewToken(), permits(n)), dibs.Held)
				t.state("one too many looks", q.look(k, permits(n)), dibs.Held)
				for i, w := range ws {
					t.waits("a waiter", q.queue(k, w, permits(n)), i)
				}
				t.ok("a holder in the middle releases", q.release(k, hs[1]))
				t.granted("the first waiter", q.queue(k, ws[0], permits(n)), 1)
				t.waits("the second", q.queue(k, ws[1], permits(n)), 0)
				t.lost("renew by who released", p.renew(k, hs[1], long))
				t.ok("renew by another", p.renew(k, hs[0], long))
				t.ok("the first releases", p.release(k, hs[0]))
				t.ok("the first waiter releases", p.release(k, ws[0]))
				t.granted("the third waiter", q.queue(k, ws[2], permits(n)), 1)
				t.granted("the second waiter", q.queue(k, ws[1], permits(n)), 1)
				t.state("one too many", q.try(k, dibs.NewToken(), permits(n)), dibs.Held)
			}
		},
	},
	{
		Name: "PermitsRunOutOneByOne",
		Why:  "Each of several holders has a lease of its own. One that dies frees its permit and no other.",
		Check: func(t *Trial) {
			p := t.process()
			k, dead, alive := key("k"), dibs.NewToken(), dibs.NewToken()
			t.granted("one that dies", p.try(k, dead, permits(2)), 1)
			t.granted("one that lives", p.try(k, alive, permits(2)), 1)
			t.ok("the last renewal", p.renew(k, dead, t.short()))
			t.outlast(t.short())
			t.lost("renew by the dead one", p.renew(k, dead, long))
			t.state("a third", p.try(k, dibs.NewToken(), permits(2)), dibs.Granted)
			t.state("a fourth", p.try(k, dibs.NewToken(), permits(2)), dibs.Held)
			t.ok("renew by the one that lives", p.renew(k, alive, long))
		},
	},
	{
		Name: "PermitsMustAgree",
		Why:  "If one caller takes a key for a mutex and another for a semaphore, one of them is wrong. It is told so, with the number that the others agreed on.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			differ := func(what string, a dibs.Answer, want int) {
				t.Helper()
				t.state(what, a, dibs.PermitsDiffer)
				if a.Permits != want {
					t.Fatalf("%s: told that there are %d permits, want %d", what, a.Permits, want)
				}
			}
			k, a, b := key("k"), dibs.NewToken(), dibs.NewToken()
			t.granted("a holder of 2", p.try(k, a, permits(2)), 1)
			differ("a try with 3", q.try(k, dibs.NewToken(), permits(3)), 2)
			differ("a try with 1", q.try(k, dibs.NewToken()), 2)
			differ("a look with 3", q.look(k, permits(3)), 2)
			differ("a queue with 3", q.queue(k, b, permits(3)), 2)
			differ("a reserve with 3", q.reserve(k, b, permits(3)), 2)
			t.lost("settling the one that differed", q.release(k, b))
			t.ok("release", p.release(k, a))
			t.granted("a holder of 3, when the key is idle", p.try(k, b, permits(3)), 1)
			differ("a try with 2", q.try(k, dibs.NewToken(), permits(2)), 3)
			t.ok("release", p.release(k, b))

			k = key("reserved")
			t.waits("reserving with 2", p.reserve(k, a, permits(2)), 0)
			differ("a try with 1", q.try(k, dibs.NewToken()), 2)
			t.ok("giving up", p.release(k, a))
			t.granted("a try with 1, when the key is idle", q.try(k, dibs.NewToken()), 1)

			k = key("dead")
			t.granted("a holder of 2 that dies", p.try(k, a, permits(2), ttl(t.short())), 1)
			t.outlast(t.short())
			t.state("a try with 1, when the key is idle", q.try(k, dibs.NewToken()), dibs.Granted)
		},
	},
	{
		Name:  "PermitsUnderLoad",
		Why:   "The count must hold when everybody comes at once.",
		Heavy: true,
		Check: func(t *Trial) {
			const n, callers, rounds = 3, 12, 4
			procs := []*process{t.process(), t.process(), t.process()}
			k := key("k")
			var inside, grants atomic.Int64
			var running sync.WaitGroup
			for i := range callers {
				p := procs[i%len(procs)]
				running.Go(func() {
					for range rounds {
						w := dibs.NewToken()
						t.poll("a permit", func() bool { return p.queue(k, w, permits(n)).State == dibs.Granted })
						if now := inside.Add(1); now > n {
							t.Errorf("%d holders of %d permits", now, n)
						}
						grants.Add(1)
						inside.Add(-1)
						t.ok("release", p.release(k, w))
					}
				})
			}
			running.Wait()
			if got := grants.Load(); got != callers*rounds {
				t.Fatalf("%d grants, want %d", got, callers*rounds)
			}
		},
	},
}
