//go:build nightly

package asynqjobs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestHotKey: of two thousand jobs one half has the same key, and the others are not held
// up by those. For how long the key lies idle is a figure. They are all there when the
// workers begin, which have worked before.
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
		eventuallyWithin(t, 3*time.Minute, "all have run", func() bool { return countNotes(t, r) == n })
	}
	enqueue(each/10, "before", "before ")
	done(2 * each / 10)
	if err := f.inspector.PauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	enqueue(each, "hot", "other ")
	begin := time.Now()
	if err := f.inspector.UnpauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	done(2*each + 2*each/10)
	all := notes(t, r)
	inOrder(t, all, counts)

	fetches := map[string]int{}
	for _, n := range f.mutex.redis.HGetAll(t.Context(), "fetches").Val() {
		fetches[n]++
	}
	t.Logf("how many tasks were fetched how often: %v; puts off: %d", fetches, putOffs(t, f))
	var late []time.Duration // how late timers were
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
	t.Logf("the hot ones ran for %v; %d before the last of the others", end.Sub(begin).Round(time.Millisecond), hotBeforeOthers)
	t.Logf("the hot key was idle for %v (median), %v (95 %%), %v (99.5 %%), %v (at most); jobs were late by %v (99 %%)",
		at(idle, 0.5), at(idle, 0.95), at(idle, 0.995), at(idle, 1), at(late, 0.99))
	if hotBeforeOthers > each/2 {
		t.Errorf("the last of the others ran after %d of the %d hot ones", hotBeforeOthers, each)
	}
}

// TestShortLease: jobs that take five times as long as a lease do not overlap.
func TestShortLease(t *testing.T) {
	t.Parallel()
	const jobs = 4
	r := ownRedis(t)
	f := newFixture(t, r, nil)
	p := plan{Work: "note", Redis: r.Addr, DB: r.DB, Store: storeURL(r), Concurrency: 4, TTL: time.Second}
	for range 2 {
		startChild(t, p)
	}
	for n := range jobs {
		f.enqueue(t, errand{Key: "k", Number: n + 1, Takes: 5 * time.Second}.task())
	}
	eventuallyWithin(t, 2*time.Minute, "all ran", func() bool { return countNotes(t, r) == jobs })
	inOrder(t, notes(t, r), map[string]int{"k": jobs})
}
