package jobs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

func TestReplace(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		q, l := newQueue(), newRunLog(t)
		m := f.mutex(&jobs.Options{Policy: jobs.Replace})
		f.workers(q, m, 6, l.work(time.Second))
		for i := range 5 {
			q.enqueue(t, m, "k", fmt.Sprint("k/", i))
			time.Sleep(10 * time.Millisecond)
		}
		// One that is rolled back is the end of none.
		f.ticket(m, "k")
		f.drain(q)
		l.inOrder("k", "k/0", "k/4")
		if s := m.Stats(); s.Replaced != 3 {
			t.Errorf("%+v, want 3 replaced", s)
		}
	})
}

// TestOncePerPeriod: a job whose ID and key name the hour runs once in that hour. A run that failed
// does not count.
func TestOncePerPeriod(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(&jobs.Options{Policy: jobs.Skip, Once: 24 * time.Hour})
		ran := map[string]int{}
		run := func(hour string, result error) error {
			return m.Run(t.Context(), jobs.Job{Kind: "report", ID: hour, Key: hour}, func(context.Context) error {
				if result == nil {
					ran[hour]++
				}
				return result
			})
		}
		if err := run("report 10", errors.New("an accident")); err == nil {
			t.Error("a failure was swallowed")
		}
		for _, hour := range []string{"report 10", "report 10", "report 11", "report 10"} {
			testkit.Must(t, run(hour, nil))
		}
		if s := m.Stats(); ran["report 10"] != 1 || ran["report 11"] != 1 || s.Remembered != 2 || s.Failed != 1 {
			t.Errorf("it ran %v, %+v", ran, s)
		}
		f.empty()
	})
}

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		after jobs.AfterLimit
		count func(jobs.Stats) uint64
	}{
		{"fail", jobs.Fail, func(s jobs.Stats) uint64 { return s.Held }},
		{"run anyway", jobs.RunAnyway, func(s jobs.Stats) uint64 { return s.RanAnyway }},
		{"give up", jobs.GiveUp, func(s jobs.Stats) uint64 { return s.GaveUp }},
	} {
		simulateAs(t, c.name, func(t *testing.T, f *fixture) {
			q := newQueue()
			o := jobs.Options{Limit: time.Minute, AfterLimit: c.after}
			var noted atomic.Int64
			if c.after == jobs.GiveUp {
				o.GaveUp = func(_ context.Context, j jobs.Job, waited time.Duration) error {
					if noted.Add(1); j.ID != "k/1" || waited < time.Minute || waited > 61*time.Second {
						t.Errorf("%q was given up after %v", j.ID, waited)
					}
					return nil
				}
			}
			m := f.mutex(&o)
			q.enqueue(t, m, "k", "k/0")
			second := q.enqueue(t, m, "k", "k/1")
			second.attempts = 1
			start := time.Now()
			ran := false
			f.run(q, m, 3, func(ctx context.Context, id string) error {
				if id == "k/0" {
					time.Sleep(5 * time.Minute)
					return nil
				}
				ran = true
				if r, ok := jobs.FromContext(ctx); !ok || r.Lease != nil {
					t.Errorf("a job that runs anyway sees %+v, want one without a lease", r)
				}
				if took := time.Since(start); took < time.Minute || took > 61*time.Second {
					t.Errorf("it ran anyway after %v", took)
				}
				return nil
			})
			if n := c.count(m.Stats()); n != 1 {
				t.Errorf("counted %d times: %+v", n, m.Stats())
			}
			if ran != (c.after == jobs.RunAnyway) || noted.Load() > 0 != (c.after == jobs.GiveUp) ||
				second.dropped != (c.after == jobs.Fail) || second.dropped && !errors.Is(second.err, dibs.ErrHeld) {
				t.Errorf("ran %v, noted %d, %+v", ran, noted.Load(), second)
			}
			f.empty()
		})
	}
}

// TestPermits runs jobs that take longer than their TTL.
func TestPermits(t *testing.T) {
	for _, n := range []int{1, 3} {
		simulateAs(t, n, func(t *testing.T, f *fixture) {
			q, l := newQueue(), newRunLog(t)
			l.most = n
			m := f.mutex(&jobs.Options{Permits: n, TTL: time.Second})
			q.backlog(t, m, 10*n)
			start := time.Now()
			f.run(q, m, 10, l.work(5*time.Second))
			if took := time.Since(start); took < 50*time.Second || took > 52*time.Second {
				t.Errorf("%d jobs of 5 s, %d at once, took %v", 10*n, n, took)
			}
			f.empty()
		})
	}
}

func TestTicketsThatDoNotFit(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		var log bytes.Buffer
		m := f.mutex(&jobs.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		other := f.ticket(m, "another key")
		for _, ticket := range []string{"rubbish", other, "dibs1.~", strings.Repeat("x", 10000)} {
			log.Reset()
			ran := false
			err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket}, func(context.Context) error {
				ran = true
				return nil
			})
			if err != nil || !ran {
				t.Errorf("a job with the ticket %.20q: ran %v, %v", ticket, ran, err)
			}
			if !strings.Contains(log.String(), "ticket") && !strings.Contains(log.String(), "key has changed") {
				t.Errorf("nothing was said of the ticket %.20q: %s", ticket, &log)
			}
		}
		// A job that was enqueued with a key and runs without gives its place back.
		testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Ticket: f.ticket(m, "k")}, nothing))
		f.empty()
	})
}

func TestJobSeesWhatThereIsToKnow(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		q := newQueue()
		var log bytes.Buffer
		m := f.mutex(&jobs.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		q.backlog(t, m, 2)
		f.run(q, m, 1, func(ctx context.Context, id string) error {
			r, ok := jobs.FromContext(ctx)
			lease, held := dibs.FromContext(ctx)
			if !ok || !held || r.Lease != lease || r.Job.ID != id {
				t.Errorf("the job sees %+v", r)
			}
			return nil
		})
		second := f.mutex(&jobs.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		holder := f.held("k")
		q = newQueue()
		q.enqueue(t, m, "k", "k/2")
		f.workers(q, second, 2, func(ctx context.Context, _ string) error {
			if r, _ := jobs.FromContext(ctx); r.Tries != 1 || r.Waited < 1200*time.Millisecond || r.Waited > 1300*time.Millisecond {
				t.Errorf("the job sees %+v, want one that has waited for 1.2 s", r)
			}
			return nil
		})
		time.Sleep(1200 * time.Millisecond)
		testkit.Must(t, holder.Release())
		f.drain(q)
		if text := log.String(); !strings.Contains(text, `level=DEBUG msg="dibs: job succeeded" key=`+f.client().Key("k").Digest()+" kind=test job=k/2 try=1 waited=1.2") || strings.Contains(text, "key=k ") {
			t.Errorf("the log says:\n%s", text)
		}
		f.empty()
	})
}

func TestStepsAreTheJobsOwn(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		q := newQueue()
		m := f.mutex(&jobs.Options{CrashGrace: time.Second})
		q.backlog(t, m, 2)
		charged := map[string]int{}
		crashed := false
		f.run(q, m, 2, func(ctx context.Context, id string) error {
			_, err := dibs.Step(ctx, "charge", func(context.Context) (string, error) {
				charged[id]++
				return id, nil
			})
			if err != nil {
				return err
			}
			if id == "k/0" && !crashed {
				crashed = true
				return errors.New("crashed after it had charged")
			}
			return nil
		})
		if charged["k/0"] != 1 || charged["k/1"] != 1 {
			t.Errorf("charged %v, want each once", charged)
		}
		f.empty()
	})
}

func TestLostKey(t *testing.T) {
	for _, returns := range []error{nil, errors.New("an accident")} {
		simulateAs(t, returns, func(t *testing.T, f *fixture) {
			m := f.mutex(nil)
			ticket := f.ticket(m, "k")
			err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket}, func(ctx context.Context) error {
				_, err := f.store.ForceRelease(t.Context(), dibs.Key{Name: "k"}, "")
				testkit.Must(t, err)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), dibs.ErrLost) {
					t.Errorf("the job's context ended with %v", context.Cause(ctx))
				}
				return returns
			})
			// What was done is done; what failed has lost its key too.
			if returns == nil && err != nil || returns != nil && (!errors.Is(err, dibs.ErrLost) || !errors.Is(err, returns)) {
				t.Errorf("the job ended with %v", err)
			}
			if s := m.Stats(); s.Lost != 1 {
				t.Errorf("%+v, want one lost", s)
			}
			if err != nil { // it is tried again, and its place is kept for that
				testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket}, nothing))
			}
			f.empty()
		})
	}
}

func TestStoreThatIsDown(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutexOf(downStore{}, nil)
		if _, err := m.Enqueue(t.Context(), jobs.Job{Key: "k"}); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("enqueued without a place: %v", err)
		}
		if _, err := m.EnqueueMany(t.Context(), []jobs.Job{{Key: "k"}, {Key: "j"}}); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("enqueued without places: %v", err)
		}
		for _, o := range []jobs.Options{
			{}, {Policy: jobs.Wait}, {Policy: jobs.Skip}, {Policy: jobs.Replace}, {Policy: jobs.CancelRunning},
		} {
			m := f.mutexOf(downStore{}, &o)
			ticket := "dibs1.AAAAAAAAAAAAAAAAAAAAAQ..aw~5"
			err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket}, func(context.Context) error {
				t.Errorf("a job with policy %d ran without its key", o.Policy)
				return nil
			})
			if !errors.Is(err, dibs.ErrStore) || m.Stats().Refused != 1 {
				t.Errorf("policy %d: %v, %+v", o.Policy, err, m.Stats())
			}
		}
	})
}

// downStore does not answer.
type downStore struct{}

var errDown = errors.New("connection refused")

func (downStore) Claim(context.Context, []store.Claim, []store.Answer) error { return errDown }
func (downStore) Renew(context.Context, []store.Renewal, []error) error      { return errDown }
func (downStore) Settle(context.Context, []store.Settlement, []error) error  { return errDown }

func TestOptionsAreChecked(t *testing.T) {
	c, err := dibs.New(downStore{}, nil)
	testkit.Must(t, err)
	for name, o := range map[string]*jobs.Options{
		"Policy":             {Policy: 99},
		"Failed":             {Failed: 7},
		"Permits":            {Permits: -1},
		"Total and TotalKey": {Total: 2},
		"Total is -1":        {Total: -1, TotalKey: "all"},
		"policy Skip":        {Total: 2, TotalKey: "all", Policy: jobs.Skip},
		"TTL":                {TTL: time.Millisecond},
		"Grace":              {Grace: -1},
		"PlaceTTL":           {PlaceTTL: time.Second},
		"Limit":              {Limit: time.Second},
		"AfterLimit":         {AfterLimit: jobs.Fail},
		"GaveUp":             {Limit: time.Second, AfterLimit: jobs.GiveUp},
		"Permits must be 1":  {Policy: jobs.Replace, Permits: 2},
		"Unordered":          {Policy: jobs.Replace, Unordered: true},
		"CancelRunning":      {Policy: jobs.CancelRunning, Unordered: true},
		"Transactor needs":   {Transactor: struct{ dibs.Transactor }{}},
	} {
		if _, err := jobs.New(c, o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want an error that names %s", o, err, name)
		}
	}
	m, err := jobs.New(c, nil)
	testkit.Must(t, err)
	if err := m.Run(t.Context(), jobs.Job{Key: "k"}, nil); err == nil || !strings.Contains(err.Error(), "was given no function") {
		t.Errorf("a job without a function: %v", err)
	}
	if err := jobs.Commit(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "was given no function") {
		t.Errorf("a transaction without a function: %v", err)
	}
	if _, err := jobs.New(nil, nil); err == nil {
		t.Error("a mutex without a client")
	}
}

// A consumer without a function is refused before it takes a message.
func TestHandleNothing(t *testing.T) {
	describe, run := func(int) jobs.Job { return jobs.Job{} }, func(context.Context, int) error { return nil }
	for name, wrap := range map[string]func(){
		"Handle":                  func() { jobs.Handle(nil, describe, nil) },
		"Handle, undescribed":     func() { jobs.Handle(nil, nil, run) },
		"HandleBatch":             func() { jobs.HandleBatch(nil, 1, describe, nil) },
		"HandleBatch undescribed": func() { jobs.HandleBatch(nil, 1, nil, run) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "jobs: Handle") {
					t.Errorf("%s: %q", name, text)
				}
			}()
			wrap()
		}()
	}
}
