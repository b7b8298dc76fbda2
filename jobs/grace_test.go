package jobs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/journal"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

// TestLateJobKeepsItsTurn gives a job back to its queue, which has no free worker for a minute
// longer than planned. No other job of the key passes it, although Grace is short, because its
// queue has it.
func TestLateJobKeepsItsTurn(t *testing.T) {
	const late = time.Minute
	again := func(error) time.Duration { return 10 * time.Minute }
	full := errors.New("the table is full")
	pool := jobs.Pool{Name: "pool", Workers: 2}
	for _, c := range []struct {
		name    string
		options jobs.Options
		job     jobs.Job
		busy    string // the key that is held, by default the job's own
		end     func(m *jobs.Mutex, cancel context.CancelFunc)
		failed  error // nil: it is requeued
	}{
		{name: "no worker has room for its wait"},
		{name: "no worker has room, and its queue promotes it", job: jobs.Job{Promoted: true}},
		{name: "it waited in a worker", options: jobs.Options{Policy: jobs.Wait, Wait: time.Second}},
		{name: "it waited in a worker, and its queue promotes it", options: jobs.Options{Policy: jobs.Wait, Wait: time.Second}, job: jobs.Job{Promoted: true}},
		{name: "its patience is over", job: jobs.Job{Pool: pool, Patience: time.Second}},
		{name: "its worker closes", job: jobs.Job{Pool: pool}, end: func(m *jobs.Mutex, _ context.CancelFunc) { m.Close() }},
		{name: "it waits for a shared permit", options: jobs.Options{Total: 1, TotalKey: "all"}, busy: "all"},
		{
			name: "it is cancelled in the wait", job: jobs.Job{Pool: pool, RetryIn: again},
			end: func(_ *jobs.Mutex, cancel context.CancelFunc) { cancel() }, failed: context.Canceled,
		},
		{
			name: "its limit is over", options: jobs.Options{Limit: time.Second, AfterLimit: jobs.Fail},
			job: jobs.Job{NoRequeue: true, RetryIn: again}, failed: dibs.ErrHeld,
		},
		{
			name: "it cannot be given up", options: jobs.Options{
				Limit: time.Second, AfterLimit: jobs.GiveUp,
				GaveUp: func(context.Context, jobs.Job, time.Duration) error { return full },
			},
			job: jobs.Job{NoRequeue: true, RetryIn: again}, failed: full,
		},
	} {
		for _, ticket := range []bool{true, false} {
			simulateAs(t, c.name+map[bool]string{false: ", without a ticket"}[ticket], func(t *testing.T, f *fixture) {
				c.options.Grace = time.Second
				m := f.mutex(&c.options)
				busy := "k"
				if c.busy != "" {
					busy = c.busy
				}
				holder := f.held(busy)
				j := c.job
				j.Kind, j.ID, j.Key = "test", "1", "k"
				if ticket {
					j.Ticket = f.ticket(m, "k")
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.end != nil {
					time.AfterFunc(time.Second, func() { c.end(m, cancel) })
				}
				err := m.Run(ctx, j, nothing)
				after := again(err)
				if back, ok := errors.AsType[*jobs.RequeueError](err); ok {
					after = back.After
				} else if !errors.Is(err, c.failed) || err == nil {
					t.Fatalf("the job ended with %v", err)
				}
				testkit.Must(t, holder.Release())
				f.othersWait(f.mutex(&jobs.Options{Grace: time.Second}), j, after+late)
				f.empty()
			})
		}
	}
}

// TestJobThatWasRequeuedAndWaitsWhenItsWorkerDies: a job that was given back, and waits in its
// next worker, is waited for no longer than Grace if that worker dies.
func TestJobThatWasRequeuedAndWaitsWhenItsWorkerDies(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		store := &mortalStore{Store: f.store}
		dying, m := f.mutexOf(store, nil), f.mutex(nil)
		holder := f.held("k")
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")}
		if _, ok := errors.AsType[*jobs.RequeueError](m.Run(t.Context(), j, nothing)); !ok {
			t.Fatal("it was not requeued")
		}
		j.NoRequeue = true
		f.wg.Go(func() { _ = dying.Run(t.Context(), j, nothing) })
		time.Sleep(time.Second)
		store.dead.Store(true)
		time.Sleep(30 * time.Second)
		testkit.Must(t, holder.Release())
		start := time.Now()
		testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "2", Key: "k", NoRequeue: true}, nothing))
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the next job ran after %v; want Grace, 10 s, and two seconds at most", took)
		}
		testkit.Must(t, m.Run(t.Context(), j, nothing)) // it is delivered again
		f.wg.Wait()
	})
}

// mortalStore is the store of a process that dies: then no call reaches the store.
type mortalStore struct {
	dibs.Store
	dead atomic.Bool
}

func (s *mortalStore) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if s.dead.Load() {
		return errEnded
	}
	return s.Store.Claim(ctx, claims, answers)
}

func (s *mortalStore) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if s.dead.Load() {
		return errEnded
	}
	return s.Store.Renew(ctx, renewals, errs)
}

func (s *mortalStore) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if s.dead.Load() {
		return errEnded
	}
	return s.Store.Settle(ctx, settlements, errs)
}

// TestOnlyAJobThatRanIsWaitedForForCrashGrace lets a worker die with a job, and measures how long
// the next job of the key waits: for CrashGrace if the job had begun, and otherwise for Grace.
func TestOnlyAJobThatRanIsWaitedForForCrashGrace(t *testing.T) {
	const crashGrace = 10 * time.Minute
	plain, total := jobs.Options{CrashGrace: crashGrace}, jobs.Options{CrashGrace: crashGrace, Total: 1, TotalKey: "all"}
	for _, c := range []struct {
		name    string
		options jobs.Options
		busy    string // the key that another job holds first
		frees   bool   // before the worker dies, so that its job begins
		ticket  bool
		want    time.Duration // at most
	}{
		{"it waits for its key", plain, "k", false, true, 20 * time.Second},
		{"it waits for its key, without a ticket", plain, "k", false, false, 20 * time.Second},
		{"it has its key, and waits for a shared permit", total, "all", false, true, 20 * time.Second},
		{"it ran at once", plain, "other", true, true, crashGrace + 20*time.Second},
		{"it waited, and ran", plain, "k", true, true, crashGrace + 20*time.Second},
		{"it waited without a ticket, and ran", plain, "k", true, false, crashGrace + 20*time.Second},
		{"it waited for a shared permit, and ran", total, "all", true, true, crashGrace + 20*time.Second},
	} {
		simulateAs(t, c.name, func(t *testing.T, f *fixture) {
			store := &mortalStore{Store: f.store}
			dying, m := f.mutexOf(store, &c.options), f.mutex(&c.options)
			holder := f.held(c.busy)
			job := jobs.Job{Kind: "test", ID: "1", Key: "k", NoRequeue: true}
			if c.ticket {
				job.Ticket = f.ticket(m, "k")
			}
			var began atomic.Bool
			f.wg.Go(func() {
				_ = dying.Run(t.Context(), job, func(ctx context.Context) error {
					began.Store(true)
					<-ctx.Done()
					return ctx.Err()
				})
			})
			time.Sleep(time.Second)
			if c.frees {
				testkit.Must(t, holder.Release())
				time.Sleep(time.Second)
			}
			store.dead.Store(true)
			if !c.frees {
				time.Sleep(30 * time.Second)
				testkit.Must(t, holder.Release())
			}
			if synctest.Wait(); began.Load() != c.frees {
				t.Fatalf("the job has begun: %v", began.Load())
			}
			start := time.Now()
			testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "2", Key: "k", Ticket: f.ticket(m, "k"), NoRequeue: true}, nothing))
			if took := time.Since(start); took > c.want || c.frees && took < crashGrace {
				t.Errorf("the next job ran after %v; want %v at most", took, c.want)
			}
			testkit.Must(t, m.Run(t.Context(), job, nothing)) // it is delivered again
			f.wg.Wait()
		})
	}
}

// muteStore settles nothing while it is mute.
type muteStore struct {
	dibs.Store
	mute atomic.Bool
}

func (s *muteStore) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if s.mute.Load() {
		return errDown
	}
	return s.Store.Settle(ctx, settlements, errs)
}

// TestFailedWhileTheStoreIsAway lets a job fail while its lease cannot be ended: the key
// is free soon after the store is back, and the job comes first.
func TestFailedWhileTheStoreIsAway(t *testing.T) {
	for _, failed := range []jobs.Failed{jobs.KeepPlace, jobs.LetPass} {
		simulateAs(t, failed, func(t *testing.T, f *fixture) {
			store := &muteStore{Store: f.store}
			m := f.mutexOf(store, &jobs.Options{Failed: failed})
			j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k"), NoRequeue: true}
			accident := errors.New("an accident")
			store.mute.Store(true)
			if err := m.Run(t.Context(), j, func(context.Context) error { return accident }); !errors.Is(err, accident) {
				t.Fatal(err)
			}
			time.Sleep(15 * time.Second)
			store.mute.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := m.Run(ctx, j, nothing); err != nil {
				t.Errorf("5 s after the store was back its key was not free: %v", err)
			}
			f.empty()
		})
	}
}

// TestPlaceThatRanOutInTheWait takes the place of a job away that waits in its worker:
// it has the last one then, and not again and again.
func TestPlaceThatRanOutInTheWait(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		q, l := newQueue(), newRunLog(t)
		m := f.mutex(nil)
		lease := f.held("k")
		ticket := f.ticket(m, "k")
		q.add(jobs.Job{Kind: "test", ID: "k/stays", Key: "k", Ticket: ticket, NoRequeue: true})
		f.workers(q, m, 4, l.work(1500*time.Millisecond))
		synctest.Wait()
		if err := f.client().CancelPlace(t.Context(), placeOf(t, ticket)); err != nil { // the data of a Redis is lost, say
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		q.backlog(t, m, 10)
		time.Sleep(2 * time.Second)
		testkit.Must(t, lease.Release())
		f.drain(q)
		l.inOrder("k", append([]string{"k/stays"}, ids("k/", 10)...)...)
		f.empty()
	})
}

// othersWait fails the test if another job of the key runs before j is tried again.
func (f *fixture) othersWait(m *jobs.Mutex, j jobs.Job, again time.Duration) {
	f.t.Helper()
	start, passed := time.Now(), time.Duration(0)
	f.wg.Go(func() {
		err := m.Run(f.t.Context(), jobs.Job{Kind: "test", ID: "other", Key: j.Key, NoRequeue: true}, nothing)
		if passed = time.Since(start); err != nil {
			f.t.Error(err)
		}
	})
	time.Sleep(again)
	testkit.Must(f.t, m.Run(f.t.Context(), j, nothing))
	if f.wg.Wait(); passed < again {
		f.t.Errorf("another job ran after %v, before this one was tried again after %v", passed, again)
	}
}

// TestNoPlaceForAJobThatIsDone lets a job fail for its worker that is done all the same:
// nothing of it blocks the next one.
func TestNoPlaceForAJobThatIsDone(t *testing.T) {
	for name, work := range map[string]func(t *testing.T, f *fixture, j jobs.Job) func(context.Context) error{
		"commit with an unknown outcome": func(_ *testing.T, f *fixture, _ jobs.Job) func(context.Context) error {
			table := journal.New(f.store, journal.Unanswered)
			return func(ctx context.Context) error {
				return jobs.Commit(ctx, table, nothing)
			}
		},
		"another delivery": func(t *testing.T, f *fixture, j jobs.Job) func(context.Context) error {
			other := f.mutex(nil)
			return func(ctx context.Context) error {
				_, err := f.store.ForceRelease(t.Context(), f.client().Key("k"), "") // it paused
				testkit.Must(t, err)
				testkit.Must(t, other.Run(t.Context(), j, nothing))
				<-ctx.Done()
				return ctx.Err()
			}
		},
	} {
		simulateAs(t, name, func(t *testing.T, f *fixture) {
			m := f.mutex(nil)
			j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")}
			if err := m.Run(t.Context(), j, work(t, f, j)); !errors.Is(err, dibs.ErrLost) {
				t.Errorf("the job ended with %v", err)
			}
			f.empty()
		})
	}
}

// TestLostKeyKeepsThePlace lets a lease run out and its job fail: the others of its key
// wait until it is tried again.
func TestLostKeyKeepsThePlace(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		silent := f.mutexOf(&silentStore{f.store}, &jobs.Options{CrashGrace: time.Minute})
		m := f.mutex(&jobs.Options{CrashGrace: time.Minute})
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k"), RetryIn: func(error) time.Duration { return 5 * time.Minute }}
		err := silent.Run(t.Context(), j, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return context.Cause(ctx)
		})
		if !errors.Is(err, dibs.ErrLost) {
			t.Fatal(err)
		}
		f.othersWait(m, j, 5*time.Minute)
		f.empty()
	})
}

// unrenewedStore renews no lease.
type unrenewedStore struct{ dibs.Store }

func (unrenewedStore) Renew(context.Context, []store.Renewal, []error) error { return errEnded }

// TestLostKeyOfADoneJobFreesThePlace lets a lease run out while its job succeeds, and while its
// last try fails: nobody uses the place again, so the others of its key do not wait for it.
func TestLostKeyOfADoneJobFreesThePlace(t *testing.T) {
	for name, last := range map[string]bool{"it succeeds": false, "its last try fails": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, f *fixture) {
				loses := f.mutexOf(&unrenewedStore{f.store}, &jobs.Options{CrashGrace: time.Minute})
				m := f.mutex(&jobs.Options{CrashGrace: time.Minute})
				j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k"), Final: func(error) bool { return last }}
				next := jobs.Job{Kind: "test", ID: "2", Key: "k", Ticket: f.ticket(m, "k")}
				err := loses.Run(t.Context(), j, func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(time.Second)
					if last {
						return context.Cause(ctx)
					}
					return nil
				})
				if errors.Is(err, dibs.ErrLost) != last {
					t.Fatal(err)
				}
				ran := false
				testkit.Must(t, m.Run(t.Context(), next, func(context.Context) error {
					ran = true
					return nil
				}))
				if !ran {
					t.Error("the next job did not run")
				}
				f.empty()
			})
		})
	}
}
