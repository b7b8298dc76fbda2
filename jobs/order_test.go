package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

// keyOf is the key of a job of the tests: the ID up to the slash.
func keyOf(id string) string { key, _, _ := strings.Cut(id, "/"); return key }

func TestOrderIsKept(t *testing.T) {
	for _, o := range []jobs.Options{
		{}, {Ahead: 1}, {Ahead: 30}, {Policy: jobs.Wait},
	} {
		simulateAs(t, fmt.Sprintf("policy %d, %d ahead", o.Policy, o.Ahead), func(t *testing.T, f *fixture) {
			const keys, each = 10, 25
			q, l := newQueue(), newRunLog(t)
			want := q.mixed(t, f.mutex(&o), keys, each)
			var failing sync.Map
			for range 4 {
				f.workers(q, f.mutex(&o), 5, func(_ context.Context, id string) error {
					if _, before := failing.LoadOrStore(id, true); !before && rand.N(20) == 0 {
						time.Sleep(time.Millisecond)
						return errors.New("an accident")
					}
					l.run(keyOf(id), id, rand.N(20*time.Millisecond))
					return nil
				})
			}
			f.drain(q)
			for key, ids := range want {
				l.inOrder(key, ids...)
			}
			f.empty()
		})
	}
}

// TestHotKey: no job of a hot key is given to a worker more than twice where half of a
// pool has room for Ahead of them, no more than Ahead are in workers, and the jobs of other
// keys are done before a fifth of them.
func TestHotKey(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		const many, ahead = 1000, 8
		q, l := newQueue(), newRunLog(t)
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
		f.drain(q)
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

func TestPlaceOfAJobThatNeverComes(t *testing.T) {
	for cancelled, want := range map[bool]time.Duration{false: 3 * time.Second, true: 0} {
		simulateAs(t, cancelled, func(t *testing.T, f *fixture) {
			q, l := newQueue(), newRunLog(t)
			m := f.mutex(&jobs.Options{Grace: 3 * time.Second})
			tickets, err := m.EnqueueMany(t.Context(), []jobs.Job{{Key: "k"}, {Key: "j"}, {}}) // and is rolled back
			if err != nil || tickets[2].Text != "" {
				t.Fatal(tickets, err)
			}
			if cancelled {
				m.Cancel(t.Context(), tickets[0].Text, tickets[1].Text, "")
			}
			q.backlog(t, m, 1)
			q.enqueue(t, m, "j", "j/0")
			time.Sleep(time.Hour) // no worker is there
			start := time.Now()
			f.run(q, m, 2, l.work(0))
			for id, at := range l.at {
				if took := at.Sub(start); took < want || took > want+want/3 {
					t.Errorf("a place whose job never came was in %s's way for %v, want %v", id, took, want)
				}
			}
			f.empty()
		})
	}
}

func TestFailedJob(t *testing.T) {
	for _, c := range []struct {
		failed   jobs.Failed
		attempts int
		want     []string
	}{
		{jobs.KeepPlace, 0, []string{"k/0", "k/1"}},
		{jobs.LetPass, 0, []string{"k/1", "k/0"}},
		{jobs.KeepPlace, 1, []string{"k/1"}},
	} {
		simulateAs(t, fmt.Sprintf("%+v", c), func(t *testing.T, f *fixture) {
			q, l := newQueue(), newRunLog(t)
			m := f.mutex(&jobs.Options{Failed: c.failed})
			q.enqueue(t, m, "k", "k/0").attempts = c.attempts
			q.enqueue(t, m, "k", "k/1")
			failed := false
			start := time.Now()
			f.run(q, m, 2, func(_ context.Context, id string) error {
				if id == "k/0" && !failed {
					failed = true
					time.Sleep(100 * time.Millisecond)
					return errors.New("an accident")
				}
				l.run("k", id, 10*time.Millisecond)
				return nil
			})
			l.inOrder("k", c.want...)
			if took := l.at["k/1"].Sub(start); (took < time.Second) != (c.want[0] == "k/1") {
				t.Errorf("the second job ended after %v", took)
			}
			f.empty()
		})
	}
}

// The others wait for a job that failed until it is tried again, even if that is never.
func TestFailedJobThatIsNotTriedSoon(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(nil)
		j := jobs.Job{
			Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k"),
			RetryIn: func(error) time.Duration { return math.MaxInt64 },
		}
		accident := errors.New("an accident")
		if err := m.Run(t.Context(), j, func(context.Context) error { return accident }); !errors.Is(err, accident) {
			t.Fatal(err)
		}
		for range 2 { // the first one begins the place's Grace
			if err := f.client().TryDo(t.Context(), "k", nothing); !errors.Is(err, dibs.ErrHeld) {
				t.Errorf("the key can be had: %v", err)
			}
			time.Sleep(time.Hour)
		}
		testkit.Must(t, m.Run(t.Context(), j, nothing))
		f.empty()
	})
}

func TestPanicGivesTheKeyUp(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(nil)
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = m.Run(t.Context(), j, func(context.Context) error { panic("an accident") })
		}()
		start := time.Now()
		err := m.Run(t.Context(), j, func(ctx context.Context) error {
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

// silentStore neither renews nor settles.
type silentStore struct{ dibs.Store }

var errEnded = errors.New("the process has ended")

func (silentStore) Renew(context.Context, []store.Renewal, []error) error     { return errEnded }
func (silentStore) Settle(context.Context, []store.Settlement, []error) error { return errEnded }

func placeOf(t *testing.T, ticket string) dibs.Place {
	t.Helper()
	var p dibs.Place
	testkit.Must(t, p.UnmarshalText([]byte(ticket)))
	return p
}

func TestCloseSendsWaitingJobsBack(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		q, l := newQueue(), newRunLog(t)
		leaving, staying := f.mutex(nil), f.mutex(nil)
		q.backlog(t, staying, 10)
		work := l.work(time.Second)
		f.workers(q, leaving, 10, work)
		time.Sleep(1500 * time.Millisecond)
		before := leaving.Stats()
		if before.Waiting == 0 {
			t.Fatalf("before Close: %+v", before)
		}
		leaving.Close()
		synctest.Wait()
		if s := leaving.Stats(); s.Running != before.Running || s.Waiting != 0 {
			t.Errorf("after Close: %+v, before: %+v", s, before)
		}
		f.run(q, staying, 10, work)
		l.inOrder("k", ids("k/", 10)...)
		f.empty()
	})
}

// TestTotal: a job needs a permit of its key, and one that all keys share. The order of each
// key is kept.
func TestTotal(t *testing.T) {
	for _, o := range []jobs.Options{{}, {Policy: jobs.Wait}, {Permits: 2}} {
		simulateAs(t, fmt.Sprintf("%+v", o), func(t *testing.T, f *fixture) {
			o.Total, o.TotalKey = 3, "all"
			q, l := newQueue(), newRunLog(t)
			l.most = max(o.Permits, 1)
			var mu sync.Mutex
			running, most := 0, 0
			work := l.work(time.Second)
			count := func(ctx context.Context, id string) error {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					running--
				}()
				return work(ctx, id)
			}
			first, second := f.mutex(&o), f.mutex(&o)
			ids := q.mixed(t, first, 6, 10)
			start := time.Now()
			f.workers(q, first, 8, count)
			f.workers(q, second, 8, count)
			f.drain(q)
			if took := time.Since(start); most != 3 || took > 40*time.Second {
				t.Errorf("%d jobs ran at once; 60 jobs of 1 s took %v; want 3, and about 20 s", most, took)
			}
			for key, want := range ids {
				if l.most == 1 {
					l.inOrder(key, want...)
				} else if len(l.ran[key]) != len(want) {
					t.Errorf("%q ran, want %q", l.ran[key], want)
				}
			}
			f.empty()
		})
	}
}

// TestTotalLeavesWorkers: at most half of the workers have a job that waits, for its own key
// and for a shared permit together. The other jobs come back, soon, and keep their places.
func TestTotalLeavesWorkers(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(&jobs.Options{Total: 1, TotalKey: "all"})
		lease := f.held("all")
		tickets := map[string]string{}
		for _, key := range []string{"a", "a", "b", "c", "d"} {
			id := fmt.Sprint(key, len(tickets))
			tickets[id] = f.ticket(m, key)
		}
		run := func(id string) error {
			j := jobs.Job{Kind: "test", ID: id, Key: id[:1], Ticket: tickets[id], Promoted: true, Pool: jobs.Pool{Workers: 4}}
			return m.Run(t.Context(), j, nothing)
		}
		ended := make(chan error, 2)
		for _, id := range []string{"a0", "a1"} {
			go func() { ended <- run(id) }()
			synctest.Wait()
		}
		if n := m.Stats().Waiting; n != 2 {
			t.Errorf("%d jobs wait, want 2", n)
		}
		for _, id := range []string{"b2", "c3", "d4"} {
			back, ok := errors.AsType[*jobs.RequeueError](run(id))
			if !ok || back.Parked || back.After > 5*time.Second {
				t.Errorf("%s comes back as %+v", id, back)
			}
		}
		testkit.Must(t, lease.Release())
		testkit.Must(t, errors.Join(<-ended, <-ended))
		// A job without a ticket does not pass one that came back.
		err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "later", Key: "b"}, nothing)
		if _, ok := errors.AsType[*jobs.RequeueError](err); !ok {
			t.Errorf("a later job ended with %v", err)
		}
		testkit.Must(t, errors.Join(run("b2"), run("c3"), run("d4")))
		testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "later", Key: "b"}, nothing))
		f.empty()
	})
}

// TestTotalThatIsNotGranted: the job ends as if its own key was held.
func TestTotalThatIsNotGranted(t *testing.T) {
	for name, c := range map[string]struct {
		o    jobs.Options
		end  func(m *jobs.Mutex, cancel func())
		want error
		back bool
	}{
		"limit":     {o: jobs.Options{Limit: time.Minute, AfterLimit: jobs.Fail, Failed: jobs.LetPass}, want: dibs.ErrHeld},
		"closed":    {end: func(m *jobs.Mutex, _ func()) { m.Close() }, back: true},
		"cancelled": {end: func(_ *jobs.Mutex, cancel func()) { cancel() }, want: context.Canceled},
		"wait":      {o: jobs.Options{Policy: jobs.Wait, Wait: time.Minute}, back: true},
	} {
		simulateAs(t, name, func(t *testing.T, f *fixture) {
			c.o.Total, c.o.TotalKey = 1, "all"
			m, lease := f.mutex(&c.o), f.held("all")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k"), Pool: jobs.Pool{Workers: 2}, Final: func(error) bool { return true }}
			go func() { ended <- m.Run(ctx, j, func(context.Context) error { t.Error("it ran"); return nil }) }()
			synctest.Wait()
			if c.end != nil {
				c.end(m, cancel)
			}
			err := <-ended
			if _, back := errors.AsType[*jobs.RequeueError](err); back != c.back || !back && !errors.Is(err, c.want) {
				t.Errorf("it ended with %v", err)
			}
			testkit.Must(t, lease.Release())
			if c.back {
				testkit.Must(t, f.mutex(&c.o).Run(t.Context(), j, nothing))
			}
			f.empty()
		})
	}
}

// TestTotalIsLost: a job that loses the shared permit has lost its key, too.
func TestTotalIsLost(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(&jobs.Options{Total: 2, TotalKey: "all"})
		err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k"}, func(ctx context.Context) error {
			r, _ := jobs.FromContext(ctx)
			if lease, _ := dibs.FromContext(ctx); lease != r.Lease || lease.Key().Name != "k" {
				t.Error("the job's lease is not that of its key")
			}
			_, err := f.store.ForceRelease(t.Context(), dibs.Key{Name: "all"}, "")
			testkit.Must(t, err)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if s := m.Stats(); !errors.Is(err, dibs.ErrLost) || s.Lost != 1 {
			t.Errorf("it ended with %v, %+v", err, s)
		}
	})
}
