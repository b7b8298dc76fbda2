package riverjobs

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// TestPolicies: what jobs 2 and 3 do while job 1 runs, and after it.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		jobs  jobs.Options
		while []int // those that have run while 1 runs, when no more happens
		over  []int64
		after []int // those that have run in the end
	}{
		{"come back", jobs.Options{}, []int{1}, nil, []int{1, 2, 3}},
		{"come back, without seats", jobs.Options{Seats: -1}, []int{1}, nil, []int{1, 2, 3}},
		{"wait", jobs.Options{Policy: jobs.Wait}, []int{1}, nil, []int{1, 2, 3}},
		{"unordered", jobs.Options{Unordered: true}, []int{1}, nil, []int{1, 2, 3}},
		{"skip", jobs.Options{Policy: jobs.Skip}, []int{1}, []int64{2, 3}, []int{1}},
		{"replace", jobs.Options{Policy: jobs.Replace}, []int{1}, nil, []int{1, 3}},
		{"periodic", jobs.Options{Policy: jobs.Periodic, Period: time.Hour}, []int{1}, []int64{2, 3}, []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l journal
			g := newGate()
			h := newHost(t, hostOptions{mutex: Options{Jobs: c.jobs}, work: gated(&l, g)})
			first := h.insert("it", 1, nil)
			l.await(t, 1)
			second := h.insert("it", 2, nil)
			if c.jobs.Unordered {
				eventually(t, time.Minute, "the second waits", func() bool { s := h.mutex.Stats(); return s.Waiting+s.Away == 1 })
			}
			third := h.insert("it", 3, nil)
			for _, row := range []*rivertype.JobRow{second, third} {
				if c.over != nil {
					h.await(row.ID, rivertype.JobStateCompleted)
					continue
				}
			}
			if c.over == nil {
				eventually(t, time.Minute, "both wait for their turn", func() bool {
					now := h.mutex.Stats()
					return now.Waiting+now.Away+int(now.Replaced) >= 2 // the third may have come first
				})
			}
			l.check(t, c.while...)
			close(g)
			for _, id := range []int64{first.ID, second.ID, third.ID} {
				if row := h.await(id, rivertype.JobStateCompleted); row.Attempt != 1 || len(row.Errors) > 0 {
					t.Errorf("job %d is at its attempt %d, with the errors %v", id, row.Attempt, row.Errors)
				}
			}
			l.check(t, c.after...)
			if c.jobs.Policy == jobs.Periodic {
				h.await(h.insert("it", 4, nil).ID, rivertype.JobStateCompleted)
				l.check(t, 1)
			}
		})
	}
}

// TestLimit: what becomes of a job that has waited for long enough, also when it has
// come back in between, here and elsewhere.
func TestLimit(t *testing.T) {
	t.Parallel()
	var gaveUp atomic.Int64
	for _, c := range []struct {
		name      string
		jobs      jobs.Options
		attempts  int
		state     rivertype.JobState
		ran       []int
		overlaps  int
		wantGiven int64
	}{
		{"fail", jobs.Options{Otherwise: dibs.Fail}, 1, rivertype.JobStateDiscarded, []int{1, 3}, 0, 0},
		{"fail in the worker", jobs.Options{Otherwise: dibs.Fail, Policy: jobs.Wait}, 1, rivertype.JobStateDiscarded, []int{1, 3}, 0, 0},
		{"run anyway", jobs.Options{Otherwise: dibs.RunAnyway}, 1, rivertype.JobStateCompleted, []int{1, 2, 3}, 1, 0},
		{"give up", jobs.Options{Otherwise: dibs.GiveUp, GaveUp: func(_ context.Context, j jobs.Job, waited time.Duration) error {
			if j.Kind != "job" || waited < time.Second {
				return errorf("%s gave up after %v", j.Kind, waited)
			}
			gaveUp.Add(1)
			return nil
		}}, 1, rivertype.JobStateCompleted, []int{1, 3}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l journal
			g := newGate()
			c.jobs.Limit = 1500 * time.Millisecond
			c.jobs.Seats = -1
			c.jobs.Recovery, c.jobs.Hold = time.Second, time.Second // so that it comes back often
			o := hostOptions{url: newDatabase(t), work: gated(&l, g), mutex: Options{Jobs: c.jobs}}
			h := newHost(t, o)
			newHost(t, o)
			h.insert("it", 1, nil)
			l.await(t, 1)
			second := h.insert("it", 2, &river.InsertOpts{MaxAttempts: c.attempts})
			began := time.Now()
			row := h.await(second.ID, c.state)
			if took := time.Since(began); took < time.Second || took > 15*time.Second {
				t.Errorf("it was over after %v", took)
			}
			if c.jobs.Policy != jobs.Wait {
				if n := readNote(row.Metadata); n.Try != 1 || n.Due.IsZero() {
					t.Errorf("its note is %+v", n)
				}
			}
			close(g)
			h.await(h.insert("it", 3, nil).ID, rivertype.JobStateCompleted)
			if l.overlaps != c.overlaps {
				t.Errorf("%d overlaps, want %d", l.overlaps, c.overlaps)
			}
			l.overlaps = 0
			l.check(t, c.ran...)
		})
	}
	t.Cleanup(func() {
		if n := gaveUp.Load(); n != 1 {
			t.Errorf("%d jobs were handed over", n)
		}
	})
}

// TestCancel: a job that is cancelled lets the others pass, wherever it is.
func TestCancel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		jobs    jobs.Options
		number  int // of the job that is cancelled
		ready   func(*host, *rivertype.JobRow) bool
		running bool // job 1 goes on
		want    []int
	}{
		{"while it is queued", jobs.Options{Hold: time.Second}, 0, func(*host, *rivertype.JobRow) bool { return true }, true, []int{1, 2}},
		{"while it is put off", jobs.Options{Seats: -1}, 2, func(_ *host, r *rivertype.JobRow) bool { return r.State == rivertype.JobStateScheduled }, true, []int{1, 3}},
		{"while it waits in a worker", jobs.Options{Policy: jobs.Wait}, 2, func(h *host, _ *rivertype.JobRow) bool { return h.mutex.Stats().Waiting == 2 }, true, []int{1, 3}},
		{"while it runs", jobs.Options{}, 1, func(_ *host, r *rivertype.JobRow) bool { return r.State == rivertype.JobStateRunning }, false, []int{1, 2, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l journal
			g := newGate()
			o := hostOptions{url: newDatabase(t), mutex: Options{Jobs: c.jobs}, idle: true}
			h := newHost(t, o)
			rows := map[int]*rivertype.JobRow{}
			if c.number == 0 {
				rows[0] = h.insert("it", 0, nil)
				if _, err := h.river.JobCancel(t.Context(), rows[0].ID); err != nil {
					t.Fatal(err)
				}
			}
			o.idle, o.work = false, gated(&l, g)
			h = newHost(t, o)
			for n := 1; n <= 3; n++ {
				if n == 3 && c.number == 0 {
					break
				}
				rows[n] = h.insert("it", n, nil)
				if n == 1 && c.number > 0 {
					l.await(t, 1)
				}
			}
			eventually(t, time.Minute, "it is where it is to be cancelled", func() bool {
				return c.ready(h, h.row(rows[c.number].ID))
			})
			if c.number > 0 {
				if _, err := h.river.JobCancel(t.Context(), rows[c.number].ID); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			h.await(rows[c.number].ID, rivertype.JobStateCancelled)
			if c.running {
				close(g)
			}
			for n, row := range rows {
				if n != c.number {
					h.await(row.ID, rivertype.JobStateCompleted)
				}
			}
			l.check(t, c.want...)
			// Far less than Recovery, and than a quarter of it, after which what is put
			// off comes back by itself.
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v until the others had run", took)
			}
		})
	}
}
