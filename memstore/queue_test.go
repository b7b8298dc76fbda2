package memstore

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// FuzzQueue has places join the queue, leave it, and come back. Every place knows where
// it is, and the places stand in the order in which they joined first.
func FuzzQueue(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(2))
	f.Fuzz(func(t *testing.T, seed uint64) {
		q := &queue{}
		var all, gone []*attempt
		check := func(what string) {
			t.Helper()
			if q.waiting != len(all) {
				t.Fatalf("%s: %d wait, not %d", what, q.waiting, len(all))
			}
			for i, a := range all {
				ahead := q.ahead(a.position)
				if q.places[a.position] != a || i == 0 && q.first() != a || (ahead == 0) != (i == 0) || ahead < i {
					t.Fatalf("%s: place %d is at %d, with %d ahead", what, i, a.position, ahead)
				}
				if q.find(a.token) != a {
					t.Fatalf("%s: place %d is not found", what, i)
				}
			}
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		for n := range 4000 {
			// Many more come than go, and then the other way round.
			switch op := rnd.IntN(10); {
			case op < 2 || op < 5 && n%1000 < 300:
				a := &attempt{seq: uint64(n + 1)}
				a.token[0], a.token[1] = byte(n), byte(n>>8)
				q.join(a)
				all = append(all, a)
				check("join")
			case op < 7 && len(gone) > 0:
				i := rnd.IntN(len(gone))
				a := gone[i]
				gone = slices.Delete(gone, i, i+1)
				q.rejoin(a)
				at, _ := slices.BinarySearchFunc(all, a.seq, func(b *attempt, seq uint64) int { return int(b.seq) - int(seq) })
				all = slices.Insert(all, at, a)
				check("rejoin")
			case len(all) > 0:
				i := rnd.IntN(len(all))
				if op == 9 {
					i = 0
				}
				q.remove(all[i])
				if op%2 == 0 || n%1000 > 300 {
					gone = append(gone, all[i])
				}
				if n%1000 > 600 {
					gone = nil
				}
				all = slices.Delete(all, i, i+1)
				check("remove")
			}
		}
	})
}
