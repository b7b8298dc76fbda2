package asynqjobs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/pace"
)

// TestHotKey: of two thousand jobs one half has the same key. The others are not held
// up by those, and the key does not lie idle. They are all there when the workers begin,
// which have worked before.
func TestHotKey(t *testing.T) {
	const each, processes, takes = 1000, 4, 5 * time.Millisecond
	r := ownRedis(t)
	p := plan{Work: "note", Redis: r.Addr, DB: r.DB, Store: storeURL(r), Concurrency: 10}
	for range processes {
		startChild(t, p)
	}
	f := newFixture(t, r, nil)
	counts := map[string]int{}
	enqueue := func(n int, hot, other string) {
		for i := range n {
			for _, key := range []string{hot, fmt.Sprint(other, i%250)} {
				counts[key]++
				f.enqueue(t, errand{Key: key, Number: counts[key], Takes: takes}.task())
			}
		}
	}
	done := func(n int) {
		eventually(t, 3*time.Minute, "all have run", func() bool { return countNotes(t, r) == n })
	}
	enqueue(each/10, "before", "before ")
	done(2 * each / 10)
	if err := f.inspector.PauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	enqueue(each, "hot", "other ")
	var still time.Duration // how long the machine stood still, if it did
	watched := pace.Watch(func(d time.Duration) { still = max(still, d) })
	begin := time.Now()
	if err := f.inspector.UnpauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	done(2*each + 2*each/10)
	watched()
	all := notes(t, r)
	inOrder(t, all, counts)

	// How late a timer is on this machine at this moment.
	var late []time.Duration
	var idle []time.Duration
	var last noted
	hotBeforeOthers, others := 0, 0
	var end time.Time
	for _, n := range all {
		if strings.HasPrefix(n.Key, "before") {
			continue
		}
		late = append(late, n.End.Sub(n.Begin)-takes)
		if n.Key != "hot" {
			others++
			continue
		}
		if others < each {
			hotBeforeOthers++
		}
		if !last.End.IsZero() {
			idle = append(idle, n.Begin.Sub(last.End))
			if d := idle[len(idle)-1]; d > 50*time.Millisecond {
				t.Logf("idle for %v before number %d, at %v", d, n.Number, n.Begin.Sub(begin))
			}
		}
		last, end = n, n.End
	}
	at := func(all []time.Duration, q float64) time.Duration {
		slices.Sort(all)
		return all[min(int(q*float64(len(all))), len(all)-1)].Round(10 * time.Microsecond)
	}
	load := 1 + float64(at(late, 0.99))/float64(10*time.Millisecond)
	t.Logf("the hot ones ran for %v; %d before the last of the others", end.Sub(begin).Round(time.Millisecond), hotBeforeOthers)
	t.Logf("the hot key was idle for %v (median), %v (95 %%), %v (99.5 %%), %v (at most); jobs were late by %v (99 %%), and the machine stood still for %v",
		at(idle, 0.5), at(idle, 0.95), at(idle, 0.995), at(idle, 1), at(late, 0.99), still)
	if hotBeforeOthers > each/2 {
		t.Errorf("the last of the others ran after %d of the %d hot ones", hotBeforeOthers, each)
	}
	if got, most := at(idle, 0.5), time.Duration(load*float64(20*time.Millisecond)); got > most {
		t.Errorf("half of the hand-overs took more than %v; want %v", got, most)
	}
	if got, most := at(idle, 1), time.Duration(load*float64(100*time.Millisecond))+still; got > most {
		t.Errorf("the hot key was idle for %v; want %v", got, most)
	}
}
