package asynqjobs

import (
	"fmt"
	"testing"
)

// TestConversations: the tasks of a few conversations, some of which fail once, run in
// two processes: each conversation's in their order, one at a time.
func TestConversations(t *testing.T) {
	t.Parallel()
	const conversations, each = 5, 12
	r := ownRedis(t)
	f := newFixture(t, r, nil)
	p := plan{Work: "note", Redis: r.Addr, DB: r.DB, Store: storeURL(r), Concurrency: 10}
	counts := map[string]int{}
	enqueue := func(n int) {
		for range n {
			for c := range conversations {
				key := fmt.Sprint("conversation ", c)
				counts[key]++
				f.enqueue(t, errand{Key: key, Number: counts[key], Fails: (c+counts[key])%7 == 0}.task())
			}
		}
	}
	enqueue(each / 2)
	for range 2 {
		startChild(t, p)
	}
	enqueue(each / 2) // while they work
	eventually(t, "all ran", func() bool { return countNotes(t, r) == conversations*each })
	inOrder(t, notes(t, r), counts)
}
