package riverjobs

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

// TestPolicies: what jobs 2 to 4 do while job 1 runs, and after it. The last ones are parked where
// there is an order.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		jobs  jobs.Options
		over  bool // they are done while 1 runs
		after []int
	}{
		{"come back", jobs.Options{}, false, []int{1, 2, 3, 4}},
		{"wait", jobs.Options{Policy: jobs.Wait}, false, []int{1, 2, 3, 4}},
		{"let pass", jobs.Options{Failed: jobs.LetPass}, false, []int{1, 2, 3, 4}},
		{"skip", jobs.Options{Policy: jobs.Skip}, true, []int{1}},
		{"replace", jobs.Options{Policy: jobs.Replace}, false, []int{1, 4}},
		{"cancel running", jobs.Options{Policy: jobs.CancelRunning}, false, []int{1, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.jobs.Ahead = 2
			h, l, gate, first := gatedHost(t, hostOptions{mutex: Options{Jobs: c.jobs}})
			rows := append([]*rivertype.JobRow{first}, h.inserts("it", 2, 4)...)
			switch {
			case c.over:
				for _, row := range rows[1:] {
					h.await(row.ID, rivertype.JobStateCompleted)
				}
			case c.jobs.Policy == jobs.CancelRunning: // it ends without its gate
				h.completed(rows...)
			default:
				if state := h.row(rows[3].ID).State; state != rivertype.JobStatePending {
					t.Errorf("the last one is %s", state)
				}
			}
			if c.jobs.Policy != jobs.CancelRunning {
				l.check(t, 1)
			}
			close(gate)
			h.completed(rows...)
			if got := l.order(); c.jobs.Policy.Replaces() && len(got) > 1 && got[len(got)-1] == 4 {
				return // an older one may have had its turn before the newest reached a worker
			}
			l.check(t, c.after...)
		})
	}
}

// TestUnordered: jobs without tickets that find no room to wait are not parked, because their turn
// is not that of their IDs. They come back by themselves, and run.
func TestUnordered(t *testing.T) {
	t.Parallel()
	h, l, gate, first := gatedHost(t, hostOptions{queue: 3, mutex: Options{Jobs: jobs.Options{Unordered: true}}})
	rows := []*rivertype.JobRow{first}
	for range 5 {
		rows = append(rows, h.insert("it", 2, nil))
	}
	testkit.Eventually(t, "one waits, and four come back", func() bool {
		return h.count("SELECT count(*) FROM river_job WHERE (metadata->>'snoozes')::int > 0 AND NOT metadata ? 'dibs_parked'") == 4
	})
	close(gate)
	h.completed(rows...)
	l.check(t, 1, 2, 2, 2, 2, 2)
}

// TestLimit: the limit of a wait counts from when the job was due, even when it was parked in
// between and comes to another process.
func TestLimit(t *testing.T) {
	t.Parallel()
	gaveUp := make(chan time.Duration, 1)
	o := hostOptions{url: NewDatabase(), queue: 1, mutex: Options{Jobs: jobs.Options{
		Limit: time.Hour, AfterLimit: jobs.GiveUp,
		GaveUp: func(_ context.Context, _ jobs.Job, waited time.Duration) error { gaveUp <- waited; return nil },
	}}}
	h, l, gate, _ := gatedHost(t, o)
	second := h.insert("it", 2, nil)
	o.work = l.noted()
	newHost(t, o) // no room to wait there, either
	row := h.await(second.ID, rivertype.JobStateScheduled)
	if m := readMetadata(row.Metadata); !m.Parked || m.Dibs.Try != 1 || !m.Dibs.Due.Equal(second.ScheduledAt) {
		t.Errorf("its note is %+v; it was due at %v", m, second.ScheduledAt)
	}
	h.exec(`UPDATE river_job SET metadata =
		jsonb_set(metadata, '{dibs,due}', to_jsonb((metadata->'dibs'->>'due')::timestamptz - interval '2 hours')) WHERE id = $1`, second.ID)
	h.must(h.river.JobRetry(t.Context(), second.ID))
	if waited := <-gaveUp; waited < 2*time.Hour {
		t.Errorf("it gave up after %v", waited)
	}
	h.await(second.ID, rivertype.JobStateCompleted)
	close(gate)
	h.await(h.insert("it", 3, nil).ID, rivertype.JobStateCompleted)
	l.check(t, 1, 3)
}

// TestDeployment: a new version with other options has the backlog of an old one, which continues
// beside it. No job fails, and each runs.
func TestDeployment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new jobs.Options }{
		"ahead":   {jobs.Options{Ahead: 2}, jobs.Options{Ahead: 6}},
		"behind":  {jobs.Options{Ahead: 6}, jobs.Options{Ahead: 1}},
		"permits": {jobs.Options{Permits: 1}, jobs.Options{Permits: 3}},
		"permit":  {jobs.Options{Permits: 3}, jobs.Options{Permits: 1}},
		"skip":    {jobs.Options{}, jobs.Options{Policy: jobs.Skip}},
		"skipped": {jobs.Options{Policy: jobs.Skip}, jobs.Options{}},
		"replace": {jobs.Options{}, jobs.Options{Policy: jobs.Replace}},
		"order":   {jobs.Options{}, jobs.Options{Unordered: true}},
		"failed":  {jobs.Options{Failed: jobs.LetPass}, jobs.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := hostOptions{url: NewDatabase(), idle: true, unswept: true, queue: 2, mutex: Options{Jobs: c.old}}
			old := newHost(t, o)
			var rows []*rivertype.JobRow
			insert := func(h *host) {
				for n := range 6 {
					rows = append(rows, h.insert("it", n, &river.InsertOpts{MaxAttempts: 1}))
				}
			}
			insert(old)
			o.idle, o.unswept = false, false
			newHost(t, o)
			o.mutex.Jobs = c.new
			insert(newHost(t, o))
			old.completed(rows...)
		})
	}
}

// TestShutdown: a process that is shut down in the middle gives its key up at once, and the jobs
// that it ran, that waited in it and that are parked lose nothing.
func TestShutdown(t *testing.T) {
	t.Parallel()
	url := NewDatabase()
	o := Options{Jobs: jobs.Options{Ahead: 4, CrashGrace: time.Hour}}
	h := newHost(t, hostOptions{url: url, idle: true, mutex: o})
	// Nothing here waits for the end of the lease, or for CrashGrace.
	old := startChild(t, "", childConfig{
		URL: url, Work: "stuck", Workers: 3, Ahead: 4, TTL: time.Hour, CrashGrace: time.Hour,
		Patience: DefaultPatience, Timeout: 10 * time.Minute, SoftStop: 100 * time.Millisecond,
	})
	rows := h.inserts("it", 0, 5)
	testkit.Eventually(t, "one runs, one is parked again, and the last one is parked", func() bool {
		again := slices.ContainsFunc(rows, func(r *rivertype.JobRow) bool { return h.row(r.ID).State == rivertype.JobStateScheduled })
		return again && len(h.effects("it")) == 1 && h.row(rows[5].ID).State == rivertype.JobStatePending
	})
	var l journal
	newHost(t, hostOptions{url: url, mutex: o, river: river.Config{FetchPollInterval: 200 * time.Millisecond}, work: l.noted()})
	old.End()
	h.completed(rows...)
	l.check(t, 0, 1, 2, 3, 4, 5)
}

// TestPatience: a job does not wait for so long in a worker that River takes it for dead, and
// that costs it nothing, however often it comes back.
func TestPatience(t *testing.T) {
	t.Parallel()
	h, l, gate, _ := gatedHost(t, hostOptions{river: river.Config{MaxAttempts: 1}, mutex: Options{Patience: 100 * time.Millisecond}})
	second, third := h.insert("it", 2, nil), h.insert("it", 3, nil)
	for n := 1; n <= 2; n++ {
		testkit.Eventually(t, "it is parked again", func() bool {
			row := h.row(second.ID)
			return row.State == rivertype.JobStateScheduled && readMetadata(row.Metadata).Snoozes >= n // it also comes back by itself
		})
		h.must(h.river.JobRetry(t.Context(), second.ID)) // so that it comes back at once
	}
	close(gate)
	h.completed(second, third)
	l.check(t, 1, 2, 3)
}

// TestOperatorsSeeJobs: of one key a job runs, two wait in workers, one was requeued and one is
// parked. The listing counts each once, and names it.
func TestOperatorsSeeJobs(t *testing.T) {
	t.Parallel()
	h, _, gate, first := gatedHost(t, hostOptions{queue: 4, mutex: Options{Jobs: jobs.Options{Ahead: 4, Grace: time.Minute}}})
	rows := append(h.inserts("it", 2, 5), first)
	testkit.Eventually(t, "two wait, and one was requeued", func() bool { s := h.mutex.Stats(); return s.Waiting == 2 && s.Requeued > 0 })
	name := keyOf("it")
	var e store.Entry
	testkit.Eventually(t, "the store has what waits", func() bool {
		for entry, err := range h.store.(store.Inspector).List(t.Context(), store.Query{Name: name, Places: true}) {
			h.must(nil, err)
			e = entry
		}
		return e.Waiters == 2
	})
	if e.Reserved != 2 || len(e.Runs) != 1 || !strings.HasPrefix(e.Runs[0].Owner.Label, "job 1@") {
		t.Errorf("%d places without a claim, and the leases %+v; want 2, and that of job 1", e.Reserved, e.Runs)
	}
	uses := map[store.Use]int{}
	for _, p := range e.Places {
		if p.Owner.Label != "job" && !strings.HasPrefix(p.Owner.Label, "job ") {
			t.Errorf("the label of a place is %q", p.Owner.Label)
		}
		if p.Reserved {
			uses[p.Use]++
		}
		if p.Use == store.Unused && p.Blocks > jobs.DefaultCrashGrace+10*time.Second { // which a requeued job has
			t.Errorf("a job that did not begin can block for %v", p.Blocks)
		}
	}
	if want := map[store.Use]int{store.UsedByLease: 1, store.UsedByWait: 2, store.Unused: 2}; !maps.Equal(uses, want) {
		t.Errorf("the uses of the places are %v, want %v", uses, want)
	}
	close(gate)
	h.completed(rows...)
}
