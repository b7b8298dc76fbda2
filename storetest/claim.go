package storetest

import (
	"sync"

	"github.com/dibs-go/dibs"
)

var claimProperties = []Property{
	{
		Name: "ClaimIsExclusive",
		Why:  "While one token holds a key no other is granted, or two callers run at once: the one thing that dibs is for.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b := key("k"), dibs.NewToken(), dibs.NewToken()
			t.granted("the first claim", p.try(k, a), 1)
			t.state("the second claim, in the same process", p.try(k, b), dibs.Held)
			t.state("the second claim, in another process", q.try(k, b), dibs.Held)
			t.ok("release", p.release(k, a))
			t.granted("the second claim after the release", q.try(k, b), 1)
			t.state("the first caller, again", p.try(k, dibs.NewToken()), dibs.Held)
		},
	},
	{
		Name: "ClaimIsIdempotent",
		Why:  "A claim whose reply was lost is simply sent again. If that were a new grant, or Held, the caller could not tell whether it holds the key.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), dibs.NewToken()
			fence := t.granted("the claim", p.try(k, a), 1)
			for _, p := range []*process{p, q} {
				if again := t.granted("the same claim again", p.try(k, a), 1); again != fence {
					t.Fatalf("the same claim again got fence %d, the first time it was %d", again, fence)
				}
				if again := t.granted("the same claim again, queueing", p.queue(k, a), 1); again != fence {
					t.Fatalf("the same claim again, queueing, got fence %d, the first time it was %d", again, fence)
				}
			}
			t.ok("release", q.release(k, a))
			t.granted("another claim after one release", p.try(k, dibs.NewToken()), 1)
		},
	},
	{
		Name: "ClaimAgainExtendsTheLease",
		Why:  "A claim that is sent again grants a lease of TTL from then on. A client trusts its lease from the moment it sent the last one.",
		Check: func(t *Trial) {
			p := t.process()
			k, a := key("k"), dibs.NewToken()
			t.granted("the claim", p.try(k, a, ttl(t.short())), 1)
			t.granted("the same claim with a long lease", p.try(k, a), 1)
			t.outlast(t.short())
			t.state("another claim after the first lease's end", p.try(k, dibs.NewToken()), dibs.Held)
			t.ok("release by the holder", p.release(k, a))
		},
	},
	{
		Name: "AmbiguousClaim",
		Why:  "A client that does not know whether its claim arrived sends it again, perhaps while the first is still on its way. All the copies are one grant, ended by one settlement.",
		Check: func(t *Trial) {
			procs := []*process{t.process(), t.process()}
			k, a := key("k"), dibs.NewToken()
			answers := make([]dibs.Answer, 8)
			var running sync.WaitGroup
			for i := range answers {
				running.Go(func() { answers[i] = procs[i%2].try(k, a) })
			}
			running.Wait()
			fence := answers[0].Fence
			for _, answer := range answers {
				if got := t.granted("a copy of the claim", answer, 1); got != fence {
					t.Fatalf("two copies of one claim got the fences %d and %d", fence, got)
				}
			}
			t.ok("one release", procs[1].release(k, a))
			t.granted("the next claim", procs[0].try(k, dibs.NewToken()), 1)
		},
	},
}
