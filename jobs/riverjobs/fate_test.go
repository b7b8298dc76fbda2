package riverjobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/stores/memstore"
)

const insertSQL = `INSERT INTO river_job (args, kind, max_attempts) VALUES (jsonb_build_object('of', 'it', 'number', $1::int), 'job', 25)`

// TestFates: what happens to a job that is treated in a way that is not the usual one, and to
// those of its key; a row of the README's table each. One job is runnable at a time: the others
// are parked when the story begins.
func TestFates(t *testing.T) {
	t.Parallel()
	fail := func() error { return errors.New("bad luck") }
	later := &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)}
	for _, c := range []struct {
		name   string
		insert func(f *fates) // before a worker runs; default: jobs 1, 2 and 3
		then   func(f *fates) // after that
		first  func() error   // what the first run of job 1 does
		during func(f *fates) // after job 1 has run once
		ends   int            // the job that does not come to be completed
		want   []int
	}{
		{name: "deleted while it is parked", then: func(f *fates) { f.must(f.river.JobDelete(f.ctx, f.ids[2])) }, ends: 2, want: []int{1, 3}},
		{name: "cancelled while it is parked", then: func(f *fates) { f.must(f.river.JobCancel(f.ctx, f.ids[2])) }, ends: 2, want: []int{1, 3}},
		{name: "cancels itself", first: func() error { return river.JobCancel(errors.New("no")) }, ends: 1, want: []int{1, 2, 3}},
		{name: "discarded", insert: func(f *fates) {
			f.host.insert("it", 1, &river.InsertOpts{MaxAttempts: 1})
			f.insert(2, 3)
		}, first: fail, ends: 1, want: []int{1, 2, 3}},
		{name: "fails", first: fail, want: []int{1, 1, 2, 3}},
		{name: "panics", first: func() error { panic("bad luck") }, want: []int{1, 1, 2, 3}},
		{name: "rescued", then: func(f *fates) {
			f.exec("UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() - interval '1 day' WHERE id = $1", f.ids[1])
		}, want: []int{1, 2, 3}},
		{name: "snoozes itself", then: func(f *fates) {
			f.exec(`UPDATE river_job SET metadata = metadata || '{"dibs_parked": true}' WHERE id = $1`, f.ids[1]) // it was parked before
		}, first: func() error { return river.JobSnooze(time.Hour) }, during: func(f *fates) {
			f.await(f.ids[1], rivertype.JobStateScheduled)
			f.must(nil, f.mutex.sweep(f.ctx))
			if row := f.row(f.ids[1]); row.State != rivertype.JobStateScheduled {
				f.t.Errorf("a job that snoozed itself is %s", row.State)
			}
			f.must(f.river.JobRetry(f.ctx, f.ids[1]))
		}, want: []int{1, 1, 2, 3}},
		{name: "scheduled for later", insert: func(f *fates) {
			f.ids[3] = f.host.insert("it", 3, later).ID
			f.insert(1, 2)
		}, during: func(f *fates) {
			f.await(f.ids[2], rivertype.JobStateCompleted)
			f.must(f.river.JobRetry(f.ctx, f.ids[3]))
		}, want: []int{1, 2, 3}},
		{name: "inserted by SQL, or without the middleware", insert: func(f *fates) {
			f.insert(1, 2)
			f.exec(insertSQL, 3)
		}, want: []int{1, 2, 3}},
		{name: "retried while it is parked", then: func(f *fates) { f.must(f.river.JobRetry(f.ctx, f.ids[3])) }, want: []int{1, 2, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.first == nil {
				c.first = func() error { return nil }
			}
			var l journal
			ran := make(chan struct{})
			o := hostOptions{
				url: NewDatabase(), idle: true, unswept: true, outside: true,
				mutex: Options{Jobs: jobs.Options{Ahead: 1, Grace: time.Hour, CrashGrace: time.Hour}},
			}
			if c.ends == 2 { // its place is left, and there are no two behind it that could change places
				o.mutex.Jobs.Grace = 500 * time.Millisecond
			}
			f := &fates{host: newHost(t, o), ctx: t.Context(), ids: map[int]int64{}}
			if c.insert != nil {
				c.insert(f)
			} else {
				f.insert(1, 2, 3)
			}
			if c.then != nil {
				c.then(f)
			}
			o.idle, o.unswept = false, false
			o.work = func(_ context.Context, _ *host, j *river.Job[job]) error {
				return l.run(j.Args.Number, func() error {
					if j.Args.Number > 1 || len(l.order()) > 1 {
						return nil
					}
					close(ran)
					return c.first()
				})
			}
			newHost(t, o)
			<-ran
			if c.during != nil {
				c.during(f)
			}
			delete(f.ids, c.ends)
			for _, id := range f.ids {
				f.await(id, rivertype.JobStateCompleted)
			}
			l.await(t, c.want...)
		})
	}
}

// fates is what a story can use.
type fates struct {
	*host
	ctx context.Context
	ids map[int]int64 // by number, of jobs that must be completed in the end
}

// insert inserts jobs. All but the first are parked.
func (f *fates) insert(numbers ...int) {
	f.t.Helper()
	for _, n := range numbers {
		row := f.host.insert("it", n, nil)
		if parked := row.State == rivertype.JobStatePending; parked != (n > 1) {
			f.t.Errorf("job %d is %s", n, row.State)
		}
		f.ids[n] = row.ID
	}
}

// TestRetriedByHand: a job that is retried when it was discarded is behind the others of its key. It
// does not keep them parked, although its ID is the first and no job that ends makes them runnable.
func TestRetriedByHand(t *testing.T) {
	t.Parallel()
	var l journal
	o := hostOptions{url: NewDatabase(), idle: true, unswept: true, outside: true, mutex: Options{Jobs: jobs.Options{Ahead: 1, Grace: time.Hour, CrashGrace: time.Hour}}}
	h := newHost(t, o)
	first := h.insert("it", 1, &river.InsertOpts{MaxAttempts: 1})
	last := h.inserts("it", 2, 3)[1]
	o.idle, o.work = false, func(_ context.Context, _ *host, j *river.Job[job]) error {
		return l.run(j.Args.Number, func() error { return map[bool]error{true: errors.New("bad luck")}[len(l.order()) == 1] })
	}
	died := newHost(t, o)
	h.await(first.ID, rivertype.JobStateDiscarded)
	h.must(nil, died.close())
	h.must(h.river.JobRetry(t.Context(), first.ID))
	o.unswept = false
	newHost(t, o)
	h.await(last.ID, rivertype.JobStateCompleted)
	l.await(t, 1, 2, 3, 1)
}

// TestCancelled: a job that is cancelled while a worker has it lets the others pass at once.
func TestCancelled(t *testing.T) {
	t.Parallel()
	for number, name := range map[int]string{1: "while it runs", 2: "while it waits"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, l, gate, first := gatedHost(t, hostOptions{mutex: Options{Jobs: jobs.Options{CrashGrace: time.Hour}}})
			rows := append([]*rivertype.JobRow{first}, h.inserts("it", 2, 3)...)
			testkit.Eventually(t, "one runs, and two wait", func() bool { s := h.mutex.Stats(); return s.Running == 1 && s.Waiting == 2 })
			h.must(h.river.JobCancel(t.Context(), rows[number-1].ID))
			h.await(rows[number-1].ID, rivertype.JobStateCancelled)
			want := []int{1, 2, 3}
			if number == 2 {
				close(gate)
				want = []int{1, 3}
			}
			h.await(rows[2].ID, rivertype.JobStateCompleted)
			l.check(t, want...)
		})
	}
}

// TestStoppedOnItsLastAttempt: a job that its worker gives back because River's client stops comes
// again, even if this was its last try. It keeps its place, so no job of its key passes.
func TestStoppedOnItsLastAttempt(t *testing.T) {
	t.Parallel()
	var l journal
	running := make(chan struct{})
	o := hostOptions{url: NewDatabase(), idle: true, outside: true, mutex: Options{Jobs: jobs.Options{Ahead: 1, Grace: time.Hour, CrashGrace: time.Hour}}}
	h := newHost(t, o)
	h.insert("it", 1, &river.InsertOpts{MaxAttempts: 1})
	last := h.inserts("it", 2, 3)[1]
	o.idle, o.work = false, func(ctx context.Context, _ *host, j *river.Job[job]) error {
		return l.run(j.Args.Number, func() error {
			if len(l.order()) > 1 {
				return nil
			}
			close(running)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}
	stops := newHost(t, o)
	<-running
	h.must(nil, stops.river.StopAndCancel(t.Context()))
	newHost(t, o)
	h.await(last.ID, rivertype.JobStateCompleted)
	l.await(t, 1, 1, 2, 3)
}

// TestOnce: a second delivery of a job that is done does nothing.
func TestOnce(t *testing.T) {
	t.Parallel()
	var l journal
	h := newHost(t, hostOptions{work: l.noted(), mutex: Options{Jobs: jobs.Options{Once: time.Hour}}, river: river.Config{FetchPollInterval: 50 * time.Millisecond}})
	row := h.insert("it", 1, nil)
	h.await(row.ID, rivertype.JobStateCompleted)
	h.must(h.river.JobRetry(t.Context(), row.ID))
	testkit.Eventually(t, "it was delivered again", func() bool { return h.mutex.Stats().Remembered == 1 })
	h.await(h.insert("it", 2, nil).ID, rivertype.JobStateCompleted)
	l.check(t, 1, 2)
}

// TestCommit: what a job did is there if and only if River has it as completed.
func TestCommit(t *testing.T) {
	t.Parallel()
	// What happens to a job before it commits.
	meanwhile := map[string]string{
		"completed": "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = $1",
		"cancelled": "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $1",
		"rescued":   "UPDATE river_job SET state = 'retryable', scheduled_at = now() + interval '1 hour' WHERE id = $1",
		"deleted":   "DELETE FROM river_job WHERE id = $1",
	}
	elsewhere, err := memstore.New(nil)
	testkit.Must(t, err)
	for name, o := range map[string]hostOptions{
		"with the key": {commits: true}, "before the key": {}, "with the key elsewhere": {keys: elsewhere}, "without a key": {untagged: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := map[string]chan error{"once": make(chan error, 2)}
			for of := range meanwhile {
				got[of] = make(chan error, 1)
			}
			o.work = func(ctx context.Context, h *host, j *river.Job[job]) error {
				err := Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error {
					if statement := meanwhile[j.Args.Of]; statement != "" {
						if _, err := h.pool.Exec(ctx, statement, j.ID); err != nil {
							return err
						}
					}
					if err := effect(ctx, tx, j); err != nil || j.Args.Of != "once" || j.Attempt > 1 {
						return err
					}
					return errors.New("bad luck")
				})
				if err == nil && j.Args.Of == "once" {
					if row, err := h.river.JobGet(context.WithoutCancel(ctx), j.ID); err != nil || row.State != rivertype.JobStateCompleted {
						t.Errorf("after Commit the job is %+v, %v", row, err)
					}
				}
				got[j.Args.Of] <- err
				return err
			}
			h := newHost(t, o)
			for of := range meanwhile {
				h.insert(of, 1, nil)
				err := <-got[of]
				if errors.Is(err, ErrOver) == (of == "completed") || err == nil != (of == "completed") || len(h.effects(of)) > 0 {
					t.Errorf("%s meanwhile: Commit returned %v, and the effects are %v", of, err, h.effects(of))
				}
			}
			once := h.insert("once", 1, nil)
			if first, second := <-got["once"], <-got["once"]; first == nil || second != nil {
				t.Errorf("Commit returned %v, and then %v", first, second)
			}
			if row := h.await(once.ID, rivertype.JobStateCompleted); row.Attempt != 2 || len(h.effects("once")) != 1 {
				t.Errorf("completed at the attempt %d, with the effects %v", row.Attempt, h.effects("once"))
			}
			testkit.Eventually(t, "its place is given up", func() bool { return h.waiting("once") == 0 })
		})
	}
}

// A missing function is found before a transaction begins.
func TestCommitNothing(t *testing.T) {
	t.Parallel()
	if err := Commit[job](t.Context(), nil, nil); err == nil || err.Error() != "riverjobs: Commit was given no function; pass the function that runs in the transaction" {
		t.Error(err)
	}
}
