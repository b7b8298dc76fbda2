package memstore

import "testing"

// Whatever comes and goes, every place knows where it is.
func TestQueuePositions(t *testing.T) {
	q := &queue{}
	var all []*attempt
	check := func(what string) {
		t.Helper()
		if q.waiting != len(all) {
			t.Fatalf("%s: %d wait, not %d", what, q.waiting, len(all))
		}
		for i, a := range all {
			if q.places[a.position] != a || i == 0 && q.first() != a || (q.ahead(a) == 0) != (i == 0) || q.ahead(a) < i {
				t.Fatalf("%s: place %d is at %d, with %d ahead", what, i, a.position, q.ahead(a))
			}
		}
	}
	for i := range 100 {
		a := &attempt{}
		a.token[0] = byte(i)
		if i%3 == 0 {
			q.joinFirst(a)
			all = append([]*attempt{a}, all...)
		} else {
			q.join(a)
			all = append(all, a)
		}
		check("join")
	}
	for n := 0; len(all) > 0; n++ {
		i := n * 37 % len(all)
		q.remove(all[i])
		all = append(all[:i:i], all[i+1:]...)
		check("remove")
	}
}
