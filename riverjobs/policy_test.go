package riverjobs

import (
	"context"
	"fmt"
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
				eventually(t, "the second waits", func() bool { s := h.mutex.Stats(); return s.Waiting+s.Away == 1 })
			}
			third := h.insert("it", 3, nil)
			if c.over != nil {
				h.await(second.ID, rivertype.JobStateCompleted)
				h.await(third.ID, rivertype.JobStateCompleted)
			} else {
				eventually(t, "both wait for their turn", func() bool {
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
	for _, c := range []struct {
		name     string
		jobs     jobs.Options
		state    rivertype.JobState
		ran      []int
		overlaps int
		gaveUp   int64
	}{
		{"fail", jobs.Options{Otherwise: dibs.Fail}, rivertype.JobStateDiscarded, []int{1, 3}, 0, 0},
		{"run anyway", jobs.Options{Otherwise: dibs.RunAnyway}, rivertype.JobStateCompleted, []int{1, 2, 3}, 1, 0},
		{"give up", jobs.Options{Otherwise: dibs.GiveUp}, rivertype.JobStateCompleted, []int{1, 3}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l journal
			var gaveUp atomic.Int64
			g := newGate()
			c.jobs.Limit, c.jobs.Seats = time.Hour, -1
			if c.jobs.Otherwise == dibs.GiveUp {
				c.jobs.GaveUp = func(_ context.Context, j jobs.Job, waited time.Duration) error {
					if j.Kind != "job" || waited < time.Hour {
						return fmt.Errorf("%s gave up after %v", j.Kind, waited)
					}
					gaveUp.Add(1)
					return nil
				}
			}
			o := hostOptions{url: newDatabase(), work: gated(&l, g), mutex: Options{Jobs: c.jobs}}
			h := newHost(t, o)
			newHost(t, o)
			h.insert("it", 1, nil)
			l.await(t, 1)
			second := h.insert("it", 2, &river.InsertOpts{MaxAttempts: 1})
			row := h.await(second.ID, rivertype.JobStateScheduled)
			if n := readNote(row.Metadata); n.Try != 1 || !n.Due.Equal(second.ScheduledAt) {
				t.Errorf("its note is %+v; it was due at %v", n, second.ScheduledAt)
			}
			// It comes back at once, and was due long ago.
			_, err := h.pool.Exec(t.Context(), `UPDATE river_job SET metadata =
				jsonb_set(metadata, '{dibs,due}', to_jsonb((metadata->'dibs'->>'due')::timestamptz - interval '2 hours')) WHERE id = $1`, second.ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.river.JobRetry(t.Context(), second.ID); err != nil {
				t.Fatal(err)
			}
			h.await(second.ID, c.state)
			close(g)
			h.await(h.insert("it", 3, nil).ID, rivertype.JobStateCompleted)
			if n := gaveUp.Load(); l.overlaps != c.overlaps || n != c.gaveUp {
				t.Errorf("%d overlaps, want %d; %d jobs were handed over, want %d", l.overlaps, c.overlaps, n, c.gaveUp)
			}
			l.overlaps = 0
			l.check(t, c.ran...)
		})
	}
}

// TestLimitInWorker: the limit ends a wait in a worker, and not before.
func TestLimitInWorker(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	var l journal
	g := newGate()
	h := newHost(t, hostOptions{work: gated(&l, g), mutex: Options{Jobs: jobs.Options{Limit: limit, Otherwise: dibs.Fail, Policy: jobs.Wait}}})
	h.insert("it", 1, nil)
	l.await(t, 1)
	began := time.Now()
	second := h.insert("it", 2, &river.InsertOpts{MaxAttempts: 1})
	h.await(second.ID, rivertype.JobStateDiscarded)
	if took := time.Since(began); took < limit {
		t.Errorf("it was over after %v", took)
	}
	close(g)
	h.await(h.insert("it", 3, nil).ID, rivertype.JobStateCompleted)
	l.check(t, 1, 3)
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
			c.jobs.Recovery = time.Hour // after which, or a quarter of it, nothing here is waited for
			o := hostOptions{url: newDatabase(), mutex: Options{Jobs: c.jobs}, idle: true}
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
			eventually(t, "it is where it is to be cancelled", func() bool {
				return c.ready(h, h.row(rows[c.number].ID))
			})
			if c.number > 0 {
				if _, err := h.river.JobCancel(t.Context(), rows[c.number].ID); err != nil {
					t.Fatal(err)
				}
			}
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
		})
	}
}
