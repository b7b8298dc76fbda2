package jobs

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestOrderOfALine puts jobs in a line of whose positions no more is known than that they
// are not lower: whoever is looked at first comes first all the same, but for those that
// are called together with it, after a few looks.
func TestOrderOfALine(t *testing.T) {
	const places = 60
	for range 50 {
		m, c := inside(t, &Options{})
		l := &m.lines
		holder, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		of := &line{change: func() {}}
		var inOrder []*away
		for range places {
			p, _, err := c.Reserve(t.Context(), "k", time.Hour, nil)
			if err != nil {
				t.Fatal(err)
			}
			inOrder = append(inOrder, &away{attempt: attempt{mutex: m, place: p}})
		}
		known := rand.IntN(places) // of so many fewer it is known that they have gone
		l.moves[holder.Key()] = progress{}
		for i, w := range inOrder {
			w.at = max(0, i-rand.IntN(known+1))
		}
		for _, i := range rand.Perm(places) {
			of.add(inOrder[i])
		}
		if !slices.IsSortedFunc(of.away, func(v, w *away) int { return v.at - w.at }) {
			t.Fatal("they are not in the order of their positions")
		}
		near := 1 + rand.IntN(8)
		for round := 0; ; round++ {
			first := of.away[0]
			looked, err := l.look(of.away[:1])
			if err != nil {
				t.Fatal(err)
			}
			if l.isNear(first, looked[0], near) || !l.passed(of.away, near) {
				break
			}
			if _, err := l.compare(of.away[:min(len(of.away), inFront)]); err != nil {
				t.Fatal(err)
			}
			of.sort()
			if round > places {
				t.Fatal("it is not told who comes first")
			}
		}
		if i := slices.Index(inOrder, of.away[0]); i > near {
			t.Errorf("the first one looked at comes at %d; with those %d from their turn called, at most %d", i, near, near)
		}
		if err := holder.Release(); err != nil {
			t.Error(err)
		}
	}
}
