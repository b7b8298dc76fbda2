package riverjobs

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
)

// TestShutdown: a process that is shut down in the middle gives its key up at once,
// and the jobs that it ran, that waited in it and that it had put off lose nothing.
func TestShutdown(t *testing.T) {
	t.Parallel()
	url := newDatabase()
	h := newHost(t, hostOptions{url: url, idle: true})
	// Nothing here waits for the end of the lease, or for Recovery.
	old := startChild(t, "", childConfig{
		URL: url, Work: "stuck", Workers: 4, Seats: 1, TTL: time.Hour, Recovery: time.Hour,
		Patience: DefaultPatience, Timeout: 10 * time.Minute, SoftStop: 100 * time.Millisecond,
	})
	var last *rivertype.JobRow
	for n := range 5 {
		last = h.insert("it", n, nil)
	}
	eventually(t, "one runs, and the last one is put off", func() bool {
		return len(h.effects("it")) == 1 && h.row(last.ID).State == rivertype.JobStateScheduled
	})
	var l journal
	newHost(t, hostOptions{url: url, river: river.Config{FetchPollInterval: 200 * time.Millisecond}, work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
		return l.run(j.Args.Number, func() error { return nil })
	}})
	old.end(t)
	h.await(last.ID, rivertype.JobStateCompleted)
	l.check(t, 0, 1, 2, 3, 4)
	for id := last.ID - 4; id <= last.ID; id++ {
		if row := h.row(id); row.Attempt != 1 || len(row.Errors) > 0 {
			t.Errorf("job %d is at its attempt %d, with the errors %v", id, row.Attempt, row.Errors)
		}
	}
}

// TestAttempts: waiting for a turn is no attempt, however often a job comes back.
func TestAttempts(t *testing.T) {
	t.Parallel()
	var l journal
	g := newGate()
	h := newHost(t, hostOptions{work: gated(&l, g), river: river.Config{MaxAttempts: 1, FetchPollInterval: 50 * time.Millisecond}, mutex: Options{Jobs: jobs.Options{Seats: -1}}})
	first := h.insert("it", 1, nil)
	l.await(t, 1)
	var ids []int64
	for n := 2; n <= 4; n++ {
		ids = append(ids, h.insert("it", n, nil).ID)
	}
	for _, id := range ids {
		h.await(id, rivertype.JobStateScheduled)
		if _, err := h.river.JobRetry(t.Context(), id); err != nil { // so that it comes back at once
			t.Fatal(err)
		}
		eventually(t, "it was put off twice", func() bool { return snoozes(h.row(id)) >= 2 })
	}
	close(g)
	for _, id := range append(ids, first.ID) {
		if row := h.await(id, rivertype.JobStateCompleted); row.Attempt != 1 || len(row.Errors) > 0 {
			t.Errorf("job %d is at its attempt %d, with the errors %v", id, row.Attempt, row.Errors)
		}
	}
	l.check(t, 1, 2, 3, 4)
}

// TestPatience: a job does not wait for so long in a worker that River takes it for
// dead, and that costs it nothing.
func TestPatience(t *testing.T) {
	t.Parallel()
	var l journal
	g := newGate()
	h := newHost(t, hostOptions{
		work: gated(&l, g), river: river.Config{MaxAttempts: 1},
		mutex: Options{Patience: 200 * time.Millisecond, Jobs: jobs.Options{Policy: jobs.Wait}},
	})
	h.insert("it", 1, nil)
	l.await(t, 1)
	second, third := h.insert("it", 2, nil), h.insert("it", 3, nil)
	eventually(t, "it came back twice", func() bool { return snoozes(h.row(second.ID)) >= 2 })
	close(g)
	h.await(third.ID, rivertype.JobStateCompleted)
	l.check(t, 1, 2, 3)
	if row := h.row(second.ID); row.Attempt != 1 {
		t.Errorf("it is at its attempt %d", row.Attempt)
	}
}

// TestFailed: a job that fails and is tried again keeps its place, or lets the others
// pass. One that is done for good is in nobody's way.
func TestFailed(t *testing.T) {
	t.Parallel()
	bad := func() error { return errors.New("bad luck") }
	panics := func() error { panic("bad luck") }
	last := &river.InsertOpts{MaxAttempts: 1}
	type failure struct {
		how  func() error
		o    *river.InsertOpts
		want []int
	}
	for failed, cases := range map[jobs.Failed]map[string]failure{
		jobs.KeepPlace: {
			"keeps its place":            {bad, nil, []int{1, 1, 2, 3}},
			"panics":                     {panics, nil, []int{1, 1, 2, 3}},
			"snoozes":                    {func() error { return river.JobSnooze(300 * time.Millisecond) }, nil, []int{1, 1, 2, 3}},
			"was the last attempt":       {bad, last, []int{1, 2, 3}},
			"panics at the last attempt": {panics, last, []int{1, 2, 3}},
			"cancels itself":             {func() error { return river.JobCancel(errors.New("no")) }, nil, []int{1, 2, 3}},
		},
		jobs.LetPass: {"lets the others pass": {bad, nil, []int{1, 2, 3, 1}}},
	} {
		l, g := map[string]*journal{}, map[string]gate{}
		for of := range cases {
			l[of], g[of] = &journal{}, newGate()
		}
		h := newHost(t, hostOptions{
			queue: 50,
			river: river.Config{RetryPolicy: retryIn(time.Second)},
			mutex: Options{RetryPolicy: retryIn(time.Second), Jobs: jobs.Options{Failed: failed, Recovery: time.Hour}},
			work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
				of := j.Args.Of
				return l[of].run(j.Args.Number, func() error {
					if j.Args.Number > 1 {
						return nil
					}
					if err := g[of].pass(ctx); err != nil || len(l[of].order()) > 1 {
						return err
					}
					return cases[of].how()
				})
			},
		})
		for of, c := range cases {
			t.Run(of, func(t *testing.T) {
				t.Parallel()
				h.insert(of, 1, c.o)
				l[of].await(t, 1)
				h.insert(of, 2, nil)
				third := h.insert(of, 3, nil)
				close(g[of])
				h.await(third.ID, rivertype.JobStateCompleted)
				l[of].await(t, c.want...)
			})
		}
	}
}

// TestHotKeyLeavesWorkers: also where a queue has few workers, and the seats are as many as
// they are by default, the jobs of one key do not hold up the others.
func TestHotKeyLeavesWorkers(t *testing.T) {
	t.Parallel()
	const each = 20
	g := newGate()
	h := newHost(t, hostOptions{queue: 10, mutex: Options{Jobs: jobs.Options{Recovery: time.Hour}}, work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
		if j.Args.Of == "hot" {
			return g.pass(ctx)
		}
		return nil
	}})
	var hot, others []*rivertype.JobRow
	for n := range each {
		hot = append(hot, h.insert("hot", n, nil))
	}
	eventually(t, "one runs, four wait, and all others are put off", func() bool {
		var n int
		err := h.pool.QueryRow(t.Context(), "SELECT count(*) FROM river_job WHERE state = 'running' OR state = 'available' AND scheduled_at <= now()").Scan(&n)
		return err == nil && n <= 5
	})
	for n := range each {
		others = append(others, h.insert(fmt.Sprint("other ", n), n, nil))
	}
	for _, row := range others { // while the hot key's first job runs
		h.await(row.ID, rivertype.JobStateCompleted)
	}
	close(g)
	for _, row := range hot {
		h.await(row.ID, rivertype.JobStateCompleted)
	}
}
