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

// TestLimitThatFailsKeepsThePlace lets the limit of a job be over that is tried again
// long after: the others of its key wait for that, as they do for every failed job.
func TestLimitThatFailsKeepsThePlace(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(&jobs.Options{Limit: time.Second, AfterLimit: jobs.Fail, CrashGrace: time.Minute})
		second := f.mutex(&jobs.Options{CrashGrace: time.Minute})
		var tickets []string
		for range 2 {
			tickets = append(tickets, f.ticket(second, "k"))
		}
		first := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: tickets[1], NoRequeue: true, RetryIn: func(error) time.Duration { return 10 * time.Minute }}
		if err := m.Run(t.Context(), first, nothing); !errors.Is(err, dibs.ErrHeld) {
			t.Fatalf("the limit was over: %v", err)
		}
		testkit.Must(t, second.Run(t.Context(), jobs.Job{Kind: "test", ID: "0", Key: "k", Ticket: tickets[0]}, nothing))
		f.othersWait(second, first, 10*time.Minute)
		f.empty()
	})
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
// last attempt fails: nobody uses the place again, so the others of its key do not wait for it.
func TestLostKeyOfADoneJobFreesThePlace(t *testing.T) {
	for name, last := range map[string]bool{"it succeeds": false, "its last attempt fails": true} {
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
