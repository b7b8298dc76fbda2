package jobs_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/jobs"
)

// TestSeatIsForWhoIsNext: the only seat goes to a job that is next for its key; one
// that sat there with another before it goes back to its queue, and comes in its turn.
func TestSeatIsForWhoIsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		m := f.mutex(&jobs.Options{Seats: 1})
		begun := map[string]time.Time{}
		f.workers(q, m, 4, func(_ context.Context, id string) error {
			l.mu.Lock()
			begun[id] = time.Now()
			l.mu.Unlock()
			key, _, _ := strings.Cut(id, "/")
			l.run(key, id, time.Second)
			return nil
		})
		q.enqueue(t, m, "a", "a/0")
		ticket, err := m.Enqueue(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		q.enqueue(t, m, "a", "a/2")
		synctest.Wait()
		if s := m.Stats(); s.Waiting != 1 || s.Away != 0 {
			t.Fatalf("the third of a is to wait in a worker: %+v", s)
		}
		q.enqueue(t, m, "b", "b/0")
		q.enqueue(t, m, "b", "b/1")
		synctest.Wait()
		if s := m.Stats(); s.Waiting != 1 || s.Away != 1 {
			t.Fatalf("the second of b is to have the seat of the third of a: %+v", s)
		}
		q.add(jobs.Job{Kind: "test", ID: "a/1", Key: "a", Ticket: ticket})
		q.drain()
		f.wg.Wait()
		l.inOrder("a", "a/0", "a/1", "a/2")
		l.inOrder("b", "b/0", "b/1")
		if late := begun["b/1"].Sub(l.at["b/0"]); late > 10*time.Millisecond {
			t.Errorf("the key lay idle for %v with its next job in a seat", late)
		}
		f.empty()
	})
}

// TestSeatIsForWhoIsNearer: a job that comes shortly before its turn has the seat of one
// of its key that comes after it, however soon. How far the line has moved since that one
// sat down is seen by others of the key.
func TestSeatIsForWhoIsNearer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		const run = 20 * time.Millisecond
		q, l := newQueue(), newLedger(t)
		var putOff []string
		m := f.mutex(&jobs.Options{Seats: 2, Observe: func(_ context.Context, e jobs.Event) {
			if e.Event == jobs.EventPutOff {
				putOff = append(putOff, e.ID)
			}
		}})
		f.workers(q, m, 5, func(_ context.Context, id string) error {
			l.run("a", id, run)
			return nil
		})
		late := map[string]string{}
		for i := range 6 {
			id := "a/" + strconv.Itoa(i)
			ticket, err := m.Enqueue(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			late[id] = ticket
		}
		come := func(id string) {
			q.add(jobs.Job{Kind: "test", ID: id, Key: "a", Ticket: late[id]})
			synctest.Wait()
		}
		come("a/0") // runs
		come("a/1") // waits
		come("a/5") // waits, with four before it
		time.Sleep(run + run/2)
		synctest.Wait()
		come("a/4") // waits where a/1 has waited, with two before it
		come("a/3") // with one before it, comes before both
		if want := []string{"a/5"}; !slices.Equal(putOff, want) {
			t.Errorf("put off were %q, want %q", putOff, want)
		}
		come("a/2") // is next
		q.drain()
		f.wg.Wait()
		l.inOrder("a", "a/0", "a/1", "a/2", "a/3", "a/4", "a/5")
		f.empty()
	})
}

// TestSeatStaysWithWhoIsNearer: a job is not sent back to its queue for one whose turn
// comes later.
func TestSeatStaysWithWhoIsNearer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		m := f.mutex(&jobs.Options{Seats: 1})
		f.workers(q, m, 4, func(_ context.Context, id string) error {
			l.run("a", id, time.Second)
			return nil
		})
		q.enqueue(t, m, "a", "a/0")
		synctest.Wait()
		q.enqueue(t, m, "a", "a/1")
		synctest.Wait()
		q.enqueue(t, m, "a", "a/2")
		synctest.Wait()
		if s := m.Stats(); s.Waiting != 1 || s.Away != 1 {
			t.Fatalf("%+v", s)
		}
		q.drain()
		f.wg.Wait()
		l.inOrder("a", "a/0", "a/1", "a/2")
		if s := m.Stats(); s.PutOff != 1 {
			t.Errorf("%d were put off, want the third, once", s.PutOff)
		}
		f.empty()
	})
}

// TestSeatsForWhoCouldNotBeBack: a job that finds no seat, and whose turn comes before its
// queue could deliver it again, waits all the same, a quarter as many as there are seats; one
// that could be back does not.
func TestSeatsForWhoCouldNotBeBack(t *testing.T) {
	for run, want := range map[time.Duration][]string{10 * time.Millisecond: {"f/1"}, time.Second: {"e/1", "f/1"}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			q, l := newQueue(), newLedger(t)
			var putOff []string
			m := f.mutex(&jobs.Options{Seats: 4, Observe: func(_ context.Context, e jobs.Event) {
				if e.Event == jobs.EventPutOff {
					putOff = append(putOff, e.ID)
				}
			}})
			f.workers(q, m, 12, func(_ context.Context, id string) error {
				key, _, _ := strings.Cut(id, "/")
				l.run(key, id, run)
				return nil
			})
			q.enqueue(t, m, "a", "a/before") // from then on it is known how long they take
			time.Sleep(2 * run)
			keys := []string{"a", "b", "c", "d", "e", "f"}
			for _, key := range keys {
				q.enqueue(t, m, key, key+"/0")
				synctest.Wait()
				q.enqueue(t, m, key, key+"/1") // next, and waits
				synctest.Wait()
			}
			if !slices.Equal(putOff, want) {
				t.Errorf("jobs take %v: put off were %q, want %q", run, putOff, want)
			}
			q.drain()
			f.wg.Wait()
			for _, key := range keys[1:] {
				l.inOrder(key, key+"/0", key+"/1")
			}
			f.empty()
		})
	}
}

// TestLentSeatWhileTheLineMoves: who has one of the few more seats keeps it while those
// before it have their turns, also when that takes longer than was thought.
func TestLentSeatWhileTheLineMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		var mu sync.Mutex
		putOff := map[string]bool{}
		m := f.mutex(&jobs.Options{Seats: 8, Observe: func(_ context.Context, e jobs.Event) {
			if e.Event == jobs.EventPutOff {
				mu.Lock()
				defer mu.Unlock()
				putOff[e.ID] = true
			}
		}})
		long := map[string]time.Duration{}
		var ids []string
		for _, key := range []string{"b", "c", "d", "e", "f", "g", "h"} { // one of each waits in a seat
			ids = append(ids, key+"/0", key+"/1")
			long[key+"/0"] = 900 * time.Millisecond
		}
		line := []string{"a/0", "a/1", "a/2", "a/3"} // the last two in those that there are more
		for _, id := range line {
			ids = append(ids, id)
			long[id] = 200 * time.Millisecond
		}
		f.workers(q, m, len(ids), func(_ context.Context, id string) error {
			key, _, _ := strings.Cut(id, "/")
			l.run(key, id, max(long[id], 10*time.Millisecond))
			return nil
		})
		q.enqueue(t, m, "before", "before/0") // from then on it is known how long they take
		time.Sleep(time.Second)
		for _, id := range ids {
			key, _, _ := strings.Cut(id, "/")
			q.enqueue(t, m, key, id)
			synctest.Wait()
		}
		q.drain()
		f.wg.Wait()
		l.inOrder("a", line...)
		for _, id := range line {
			if putOff[id] {
				t.Errorf("%s was put off", id)
			}
		}
		f.empty()
	})
}

// TestLentSeatIsGivenBack: whoever was thought to be in time has one of the few more seats
// for a moment only: when jobs take long, the workers are there for those of other keys.
func TestLentSeatIsGivenBack(t *testing.T) {
	for name, test := range map[string]struct {
		busy   []string      // run for long, or wait
		within time.Duration // is a worker free again
	}{
		"behind": {[]string{"a/0", "a/1", "a/2", "a/3", "a/4", "a/5"}, 300 * time.Millisecond},
		"next":   {[]string{"a/0", "a/1", "b/0", "b/1", "c/0", "c/1", "d/0", "d/1", "e/0", "e/1"}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				q, l := newQueue(), newLedger(t)
				var mu sync.Mutex
				var putOff []string
				m := f.mutex(&jobs.Options{Seats: 4, Observe: func(_ context.Context, e jobs.Event) {
					if e.Event == jobs.EventPutOff {
						mu.Lock()
						defer mu.Unlock()
						putOff = append(putOff, e.ID)
					}
				}})
				off := func() []string {
					synctest.Wait()
					mu.Lock()
					defer mu.Unlock()
					return slices.Clone(putOff)
				}
				quick := make(chan struct{})
				// All are busy then.
				f.workers(q, m, len(test.busy), func(_ context.Context, id string) error {
					run := 10 * time.Millisecond
					if slices.Contains(test.busy, id) {
						run = 10 * time.Second
					}
					key, _, _ := strings.Cut(id, "/")
					l.run(key, id, run)
					if key == "quick" {
						quick <- struct{}{}
					}
					return nil
				})
				q.enqueue(t, m, "before", "before/0") // from then on it is known how long they take
				time.Sleep(time.Second)
				for _, id := range test.busy {
					key, _, _ := strings.Cut(id, "/")
					q.enqueue(t, m, key, id)
					synctest.Wait()
				}
				if got := off(); len(got) > 0 {
					t.Errorf("put off at once: %q", got)
				}
				for i := range 20 {
					begun := time.Now()
					q.enqueue(t, m, "quick", "quick/"+strconv.Itoa(i))
					<-quick
					if took := time.Since(begun); took > test.within+50*time.Millisecond {
						t.Errorf("job %d of another key was done after %v", i, took)
					}
					time.Sleep(50 * time.Millisecond)
				}
				if len(off()) == 0 {
					t.Error("nobody was put off; there was one seat too many")
				}
				q.drain()
				f.wg.Wait()
				f.empty()
			})
		})
	}
}
