package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

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
