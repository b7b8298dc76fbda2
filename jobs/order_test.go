package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// keyOf is the key of a job of the tests: the ID up to the slash.
func keyOf(id string) string { key, _, _ := strings.Cut(id, "/"); return key }

func TestOrderIsKept(t *testing.T) {
	for _, o := range []jobs.Options{
		{}, {Ahead: 1}, {Ahead: 30}, {Policy: jobs.Wait},
	} {
		t.Run(fmt.Sprintf("policy %d, %d ahead", o.Policy, o.Ahead), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const keys, each = 10, 25
				f := newFixture(t)
				q, l := newQueue(), newLedger(t)
				enqueuer := f.mutex(&o)
				want := map[string][]string{}
				for i := range each {
					for k := range keys {
						key := fmt.Sprint("k", k)
						id := fmt.Sprint(key, "/", i)
						q.enqueue(t, enqueuer, key, id)
						want[key] = append(want[key], id)
					}
				}
				var failing sync.Map
				for range 4 {
					f.workers(q, f.mutex(&o), 5, func(_ context.Context, id string) error {
						l.mu.Lock()
						fails := rand.N(20) == 0
						l.mu.Unlock()
						if _, before := failing.LoadOrStore(id, true); fails && !before {
							time.Sleep(time.Millisecond)
							return errors.New("an accident")
						}
						l.run(keyOf(id), id, rand.N(20*time.Millisecond))
						return nil
					})
				}
				start := time.Now()
				q.drain()
				f.wg.Wait()
				for key, ids := range want {
					l.inOrder(key, ids...)
				}
				f.empty()
				t.Logf("%v", time.Since(start))
			})
		})
	}
}

// TestHotKey: no job of a hot key is given to a worker more than twice where half of a
// pool has room for Ahead of them, no more than Ahead are in workers, and the jobs of other
// keys are done before a fifth of them.
func TestHotKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, ahead = 1000, 8
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		m := f.mutex(nil)
		for i := range many {
			q.enqueue(t, m, "hot", fmt.Sprint("hot/", i))
			key := fmt.Sprint("cold", i)
			q.enqueue(t, m, key, key)
		}
		var hot, cold, before atomic.Int64
		for range 4 {
			f.workers(q, f.mutex(nil), 2*ahead, func(_ context.Context, id string) error {
				key := keyOf(id)
				l.run(key, id, 10*time.Millisecond)
				if key == "hot" {
					hot.Add(1)
				} else if cold.Add(1) == many {
					before.Store(hot.Load())
				}
				return nil
			})
		}
		q.drain()
		f.wg.Wait()
		l.inOrder("hot", ids("hot/", many)...)
		if n := before.Load(); n > many/5 {
			t.Errorf("%d jobs of the hot key ran before the last one of the others", n)
		}
		for _, e := range q.done {
			if e.fetched > 2 {
				t.Errorf("job %s was given to a worker %d times", e.job.ID, e.fetched)
			}
		}
		if n := q.most["hot"]; n > ahead {
			t.Errorf("%d workers had a job of the hot key, want at most %d", n, ahead)
		}
		f.empty()
	})
}

func TestLongJobKeepsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		m := f.mutex(&jobs.Options{TTL: time.Second})
		for i := range 4 {
			q.enqueue(t, m, "k", fmt.Sprint("k/", i))
		}
		f.workers(q, m, 4, func(_ context.Context, id string) error {
			l.run("k", id, 5*time.Second)
			return nil
		})
		q.drain()
		f.wg.Wait()
		l.inOrder("k", ids("k/", 4)...)
		f.empty()
	})
}

func TestPlaceOfAJobThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		m := f.mutex(&jobs.Options{Hold: 3 * time.Second})
		if _, err := m.Enqueue(t.Context(), "k"); err != nil { // and is rolled back
			t.Fatal(err)
		}
		q.enqueue(t, m, "k", "k/0")
		time.Sleep(time.Hour) // no worker is there
		start := time.Now()
		f.workers(q, m, 1, func(_ context.Context, id string) error {
			l.run("k", id, 0)
			return nil
		})
		q.drain()
		f.wg.Wait()
		if took := l.at["k/0"].Sub(start); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("a place whose job never came was in the way for %v, want 3 s", took)
		}
		f.empty()
	})
}

func TestCancelledTicketIsInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		m := f.mutex(nil)
		tickets, err := m.EnqueueMany(t.Context(), []string{"k", "k", "j", ""})
		if err != nil || tickets[3].Text != "" {
			t.Fatal(tickets, err)
		}
		m.Cancel(t.Context(), tickets[0].Text, tickets[1].Text, tickets[2].Text, "")
		start := time.Now()
		q.enqueue(t, m, "k", "k/0")
		f.workers(q, m, 1, func(_ context.Context, id string) error {
			l.run("k", id, 0)
			return nil
		})
		q.drain()
		f.wg.Wait()
		if took := l.at["k/0"].Sub(start); took > time.Millisecond {
			t.Errorf("cancelled tickets were in the way for %v", took)
		}
		f.empty()
	})
}

func TestFailedJob(t *testing.T) {
	for _, c := range []struct {
		failed   jobs.Failed
		attempts int
		panics   bool
		want     []string
	}{
		{jobs.KeepPlace, 0, false, []string{"k/0", "k/1"}},
		{jobs.KeepPlace, 0, true, []string{"k/0", "k/1"}},
		{jobs.LetPass, 0, false, []string{"k/1", "k/0"}},
		{jobs.KeepPlace, 1, false, []string{"k/1"}},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				q, l := newQueue(), newLedger(t)
				m := f.mutex(&jobs.Options{Failed: c.failed})
				q.enqueue(t, m, "k", "k/0").attempts = c.attempts
				q.enqueue(t, m, "k", "k/1")
				failed := false
				start := time.Now()
				f.workers(q, m, 2, func(_ context.Context, id string) error {
					if id == "k/0" && !failed {
						failed = true
						time.Sleep(100 * time.Millisecond)
						if c.panics {
							return recovered(func() { panic("an accident") })
						}
						return errors.New("an accident")
					}
					l.run("k", id, 10*time.Millisecond)
					return nil
				})
				q.drain()
				f.wg.Wait()
				l.inOrder("k", c.want...)
				if took := l.at["k/1"].Sub(start); (took < time.Second) != (c.want[0] == "k/1") {
					t.Errorf("the second job ended after %v", took)
				}
				f.empty()
			})
		})
	}
}

// recovered is what a queue does with a job that panics.
func recovered(fn func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	fn()
	return nil
}

func TestPanicGivesTheKeyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		m := f.mutex(nil)
		ticket, err := m.Enqueue(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket}
		if err := recovered(func() {
			_ = m.Run(t.Context(), j, func(context.Context) error { panic("an accident") })
		}); err == nil {
			t.Fatal("the panic was swallowed")
		}
		start := time.Now()
		err = m.Run(t.Context(), j, func(ctx context.Context) error {
			if r, ok := jobs.FromContext(ctx); !ok || r.Abandoned != 1 {
				t.Errorf("the job sees %+v, want one that was abandoned", r)
			}
			return nil
		})
		if err != nil || time.Since(start) > 0 {
			t.Errorf("the job that panicked runs again after %v: %v", time.Since(start), err)
		}
		f.empty()
	})
}

func TestCrashedWorkerKeepsThePlaceForRecovery(t *testing.T) {
	for _, comesBack := range []bool{true, false} {
		t.Run(fmt.Sprint(comesBack), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				q, l := newQueue(), newLedger(t)
				m := f.mutex(&jobs.Options{Recovery: time.Minute})
				ticket, err := m.Enqueue(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				// A worker that crashes: its lease is taken and never heard of again.
				crash := abandonedClient(t, f)
				place := placeOf(t, ticket)
				if _, err := crash.Redeem(t.Context(), place, &dibs.AcquireOptions{Hold: time.Minute, TTL: time.Second}); err != nil {
					t.Fatal(err)
				}
				q.enqueue(t, m, "k", "k/1")
				start := time.Now()
				f.workers(q, m, 2, func(_ context.Context, id string) error {
					l.run("k", id, 10*time.Millisecond)
					return nil
				})
				if comesBack {
					time.Sleep(20 * time.Second)
					q.add(jobs.Job{Kind: "test", ID: "k/0", Key: "k", Ticket: ticket})
				}
				q.drain()
				f.wg.Wait()
				took := l.at["k/1"].Sub(start)
				if comesBack {
					l.inOrder("k", "k/0", "k/1")
					if took < 20*time.Second || took > 21*time.Second {
						t.Errorf("the job behind one whose worker died ran after %v, want 20 s and a little", took)
					}
				} else if took < time.Minute || took > 62*time.Second {
					t.Errorf("the job behind one whose worker died for good ran after %v, want a minute and a little", took)
				}
				f.empty()
			})
		})
	}
}

// abandonedClient returns a client whose calls of the store stop after the first.
func abandonedClient(t *testing.T, f *fixture) *dibs.Client {
	t.Helper()
	c, err := dibs.New(&deafStore{Store: f.store}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// deafStore neither renews nor settles.
type deafStore struct{ dibs.Store }

var errDeaf = errors.New("the process is gone")

func (deafStore) Renew(context.Context, []dibs.Renewal, []error) error     { return errDeaf }
func (deafStore) Settle(context.Context, []dibs.Settlement, []error) error { return errDeaf }

func placeOf(t *testing.T, ticket string) dibs.Place {
	t.Helper()
	var p dibs.Place
	if err := p.UnmarshalText([]byte(ticket)); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCloseSendsWaitingJobsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		leaving, staying := f.mutex(nil), f.mutex(nil)
		for i := range 10 {
			q.enqueue(t, staying, "k", fmt.Sprint("k/", i))
		}
		work := func(_ context.Context, id string) error {
			l.run("k", id, time.Second)
			return nil
		}
		f.workers(q, leaving, 10, work)
		time.Sleep(1500 * time.Millisecond)
		if s := leaving.Stats(); s.Running != 1 || s.Waiting == 0 {
			t.Fatalf("before Close: %+v", s)
		}
		leaving.Close()
		synctest.Wait()
		if s := leaving.Stats(); s.Running != 1 || s.Waiting != 0 {
			t.Errorf("after Close: %+v", s)
		}
		f.workers(q, staying, 10, work)
		q.drain()
		f.wg.Wait()
		l.inOrder("k", ids("k/", 10)...)
		f.empty()
	})
}
