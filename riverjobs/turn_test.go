package riverjobs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
)

// TestLongJobs: jobs may take longer than the lease of their key.
func TestLongJobs(t *testing.T) {
	t.Parallel()
	var l journal
	o := hostOptions{url: newDatabase(t), ttl: time.Second, work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
		return l.run(j.Args.Number, func() error { return spend(ctx, 5*time.Second) })
	}}
	h := newHost(t, o)
	newHost(t, o)
	var last *rivertype.JobRow
	for n := range 4 {
		last = h.insert("long", n, nil)
	}
	h.await(last.ID, rivertype.JobStateCompleted)
	// On a busy machine a lease of a second may be lost, and its job begins again.
	if order := l.order(); !slices.IsSorted(order) || order[len(order)-1] != 3 || l.overlaps > 0 {
		t.Errorf("the jobs ran in the order %v, %d beside others", order, l.overlaps)
	}
}

// TestShutdown: a process that is shut down in the middle gives its key up at once,
// and the jobs that it ran, that waited in it and that it had put off lose nothing.
func TestShutdown(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	h := newHost(t, hostOptions{url: url, idle: true})
	old := startChild(t, childConfig{
		URL: url, Work: "stuck", Workers: 4, Seats: 1, TTL: 30 * time.Second, Recovery: jobs.DefaultRecovery,
		Patience: DefaultPatience, Timeout: 10 * time.Minute, SoftStop: 100 * time.Millisecond,
	})
	t.Cleanup(old.kill)
	var last *rivertype.JobRow
	for n := range 5 {
		last = h.insert("it", n, nil)
	}
	eventually(t, time.Minute, "one runs, and the last one is put off", func() bool {
		var stuck int
		if err := h.pool.QueryRow(t.Context(), "SELECT count(*) FROM mark WHERE what = 'stuck'").Scan(&stuck); err != nil {
			t.Fatal(err)
		}
		return stuck == 1 && h.row(last.ID).State == rivertype.JobStateScheduled
	})
	var l journal
	began := make(chan time.Time, 100)
	newHost(t, hostOptions{url: url, river: river.Config{FetchPollInterval: 200 * time.Millisecond}, work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
		began <- time.Now()
		return l.run(j.Args.Number, func() error { return nil })
	}})
	asked := time.Now()
	old.end(t)
	t.Logf("the other process ran the job %v after this one was asked to end", (<-began).Sub(asked).Round(time.Millisecond))
	h.await(last.ID, rivertype.JobStateCompleted)
	l.check(t, 0, 1, 2, 3, 4)
	// Far less than the lease or Recovery, also on a busy machine.
	if took := time.Since(asked); took > 20*time.Second {
		t.Errorf("it took %v until the others had run", took)
	}
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
	o := hostOptions{
		url: newDatabase(t), work: gated(&l, g), river: river.Config{MaxAttempts: 1},
		mutex: Options{Jobs: jobs.Options{Seats: -1, Recovery: 4 * time.Second}},
	}
	h := newHost(t, o)
	first := h.insert("it", 1, nil)
	l.await(t, 1)
	var ids []int64
	for n := 2; n <= 6; n++ {
		ids = append(ids, h.insert("it", n, nil).ID)
	}
	for _, id := range ids {
		eventually(t, time.Minute, "it was put off twice", func() bool { return snoozes(h.row(id)) >= 2 })
	}
	close(g)
	for _, id := range append(ids, first.ID) {
		if row := h.await(id, rivertype.JobStateCompleted); row.Attempt != 1 || len(row.Errors) > 0 {
			t.Errorf("job %d is at its attempt %d, with the errors %v", id, row.Attempt, row.Errors)
		}
	}
	l.check(t, 1, 2, 3, 4, 5, 6)
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
	eventually(t, time.Minute, "it came back twice", func() bool { return snoozes(h.row(second.ID)) >= 2 })
	close(g)
	h.await(third.ID, rivertype.JobStateCompleted)
	l.check(t, 1, 2, 3)
	if row := h.row(second.ID); row.Attempt != 1 {
		t.Errorf("it is at its attempt %d", row.Attempt)
	}
}

// TestFailed: a job that fails and is tried again keeps its place, or lets the others
// pass.
func TestFailed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		failed jobs.Failed
		how    func() error
		o      *river.InsertOpts
		want   []int
	}{
		{"keeps its place", jobs.KeepPlace, func() error { return errors.New("bad luck") }, nil, []int{1, 1, 2, 3}},
		{"panics", jobs.KeepPlace, func() error { panic("bad luck") }, nil, []int{1, 1, 2, 3}},
		{"snoozes", jobs.KeepPlace, func() error { return river.JobSnooze(300 * time.Millisecond) }, nil, []int{1, 1, 2, 3}},
		{"lets the others pass", jobs.LetPass, func() error { return errors.New("bad luck") }, nil, []int{1, 2, 3, 1}},
		{"was the last attempt", jobs.KeepPlace, func() error { return errors.New("bad luck") }, &river.InsertOpts{MaxAttempts: 1}, []int{1, 2, 3}},
		{"panics at the last attempt", jobs.KeepPlace, func() error { panic("bad luck") }, &river.InsertOpts{MaxAttempts: 1}, []int{1, 2, 3}},
		{"cancels itself", jobs.KeepPlace, func() error { return river.JobCancel(errors.New("no")) }, nil, []int{1, 2, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l journal
			g := newGate()
			h := newHost(t, hostOptions{
				river: river.Config{RetryPolicy: retryIn(time.Second)},
				mutex: Options{RetryPolicy: retryIn(time.Second), Jobs: jobs.Options{Failed: c.failed}},
				work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
					return l.run(j.Args.Number, func() error {
						if j.Args.Number > 1 {
							return nil
						}
						if err := g.pass(ctx); err != nil || len(l.order()) > 1 {
							return err
						}
						return c.how()
					})
				},
			})
			h.insert("it", 1, c.o)
			l.await(t, 1)
			h.insert("it", 2, nil)
			third := h.insert("it", 3, nil)
			began := time.Now()
			close(g)
			h.await(third.ID, rivertype.JobStateCompleted)
			// Nothing that is done for good is in the way for its Recovery.
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("it took %v until the others had run", took)
			}
			l.await(t, c.want...)
		})
	}
}
