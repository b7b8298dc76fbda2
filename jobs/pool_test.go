package jobs_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/jobs"
)

// TestHalfOfTheWorkersAreForOthers: however many jobs of a key are near enough to wait for
// their turn, half of their queue's workers are free beside them and the one that runs, where
// it is known how many there are; those of another queue wait all the same.
func TestHalfOfTheWorkersAreForOthers(t *testing.T) {
	for workers, want := range map[int]int{1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 10: 4, 20: 8, 40: 8} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			l := newLedger(t)
			m := f.mutex(nil)
			work := func(_ context.Context, id string) error {
				key, _, _ := strings.Cut(id, "/")
				l.run(key, id, 5*time.Millisecond)
				return nil
			}
			q, other := newQueue(), newQueue()
			q.pool, other.pool = jobs.Pool{Workers: workers}, jobs.Pool{Workers: 100}
			f.workers(other, m, 100, work)
			other.enqueue(t, m, "before", "before/0") // from then on it is known how long they take
			time.Sleep(time.Second)

			// The line moves on, with enough jobs that could not be back in time.
			var line []string
			for i := range 60 {
				line = append(line, "a/"+strconv.Itoa(i))
				q.enqueue(t, m, "a", line[i])
			}
			f.workers(q, m, workers, work)
			var most int
			for range 100 {
				time.Sleep(time.Millisecond)
				synctest.Wait()
				most = max(most, m.Stats().Waiting)
			}
			if most < want || most > max(want, want/4*5) { // one or two more while the line moves
				t.Errorf("of %d workers %d had a job that waited, want %d", workers, most, want)
			}
			// Those of the other pool have its seats, however many wait here.
			elsewhere := []string{"b/0"}
			other.enqueue(t, m, "b", elsewhere[0])
			synctest.Wait()
			before := m.Stats().Waiting
			for i := range 10 {
				elsewhere = append(elsewhere, "b/"+strconv.Itoa(i+1))
				other.enqueue(t, m, "b", elsewhere[i+1])
			}
			synctest.Wait()
			if n := m.Stats().Waiting - before; n != 10 {
				t.Errorf("beside the pool of %d workers %d of another one waited, want 10", workers, n)
			}
			q.drain()
			other.drain()
			f.wg.Wait()
			l.inOrder("a", line...)
			l.inOrder("b", elsewhere...)
			f.empty()
		})
	}
}

// TestPoolsOfOneLine: where the jobs of a key come from queues with more and with fewer
// workers, none is made runnable again and again for which its own pool has no seat.
func TestPoolsOfOneLine(t *testing.T) {
	for _, workers := range [][2]int{{0, 0}, {1, 40}, {40, 6}, {4, 40}} {
		poolsOfOneLine(t, workers, 20*time.Millisecond)
	}
}

func poolsOfOneLine(t *testing.T, workers [2]int, path time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		l := newLedger(t)
		m := f.mutex(nil)
		var line []string
		work := func(_ context.Context, id string) error {
			run := 20 * time.Millisecond
			if id == "k/0" || id == "k/1" || id == "k/5" {
				run = 30 * time.Second
			}
			l.run("k", id, run)
			return nil
		}
		queues := []*queue{newQueue(), newQueue()}
		for i, q := range queues {
			q.pool, q.path = jobs.Pool{Workers: workers[i]}, path
			f.workers(q, m, max(workers[i], 20), work)
		}
		queues[0].enqueue(t, m, "before", "before/0") // from then on it is known how long they take
		time.Sleep(time.Second)
		for i := range 60 {
			line = append(line, fmt.Sprint("k/", i))
			queues[i%2].enqueue(t, m, "k", line[i])
			if i == 0 {
				time.Sleep(time.Second) // it runs
			}
		}
		most := 0
		for _, q := range queues {
			q.drain()
			for _, e := range q.done {
				most = max(most, e.putOffs)
			}
		}
		f.wg.Wait()
		l.inOrder("k", append([]string{"before/0"}, line...)...)
		if most > 60 { // a wake-up that fails costs a few
			t.Errorf("%d and %d workers, %v on the way: a job was put off %d times", workers[0], workers[1], path, most)
		}
		f.empty()
	})
}
