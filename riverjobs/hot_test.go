//go:build nightly

package riverjobs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"
)

// TestThousand: a thousand jobs of one key do not hold up a thousand of other keys, which come at
// the same time to two clients of 40 workers. It logs how long the hot key lay idle between jobs.
func TestThousand(t *testing.T) {
	const each = 1000
	type span struct {
		of           string
		number       int
		begun, ended time.Time
	}
	var mu sync.Mutex
	var spans []span
	o := hostOptions{url: newDatabase(), queue: 40, work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
		begun := time.Now()
		err := spend(ctx, 5*time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		spans = append(spans, span{j.Args.Of, j.Args.Number, begun, time.Now()})
		return err
	}}
	h := newHost(t, o)
	newHost(t, o)
	var batch []river.InsertManyParams
	for i := range each {
		batch = append(batch, river.InsertManyParams{Args: job{Of: "hot", Number: i}}, river.InsertManyParams{Args: job{Of: fmt.Sprint("other ", i)}})
	}
	if _, err := h.river.InsertMany(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	h.progress(2*each, func() int { mu.Lock(); defer mu.Unlock(); return len(spans) })
	slices.SortFunc(spans, func(a, b span) int { return a.begun.Compare(b.begun) })
	hot, last := []span{}, time.Time{} // when the last of the others was done
	for _, s := range spans {
		if s.of == "hot" {
			hot = append(hot, s)
		} else if s.ended.After(last) {
			last = s.ended
		}
	}
	var idle []time.Duration
	before := 0
	for i, s := range hot {
		if s.number != i {
			t.Fatalf("the hot job %d ran at place %d", s.number, i)
		}
		if i > 0 {
			idle = append(idle, s.begun.Sub(hot[i-1].ended))
		}
		if s.ended.Before(last) {
			before++
		}
	}
	slices.Sort(idle)
	if idle[0] < 0 {
		t.Errorf("two hot jobs overlapped by %v", -idle[0])
	}
	at := func(permille int) time.Duration { return idle[len(idle)*permille/1000].Round(10 * time.Microsecond) }
	t.Logf("hand-over: median %v, 90 %% %v, 99 %% %v, longest %v; %d hot ones were done when the others were; fetched %d times at most",
		at(500), at(900), at(990), at(999), before, h.fetches())
	if before > each/5 {
		t.Errorf("%d of %d hot jobs were done before the last of the others; they should not hold those up", before, each)
	}
	if n := h.fetches(); n > 2 {
		t.Errorf("a job was fetched %d times", n)
	}
}
