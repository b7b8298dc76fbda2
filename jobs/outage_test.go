package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/journal"
	"github.com/dibs-go/dibs/jobs"
)

// muteStore settles nothing while it is mute.
type muteStore struct {
	dibs.Store
	mute atomic.Bool
}

func (s *muteStore) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if s.mute.Load() {
		return errDown
	}
	return s.Store.Settle(ctx, settlements, errs)
}

// TestFailedWhileTheStoreIsAway lets a job fail while its lease cannot be ended: the key
// is free soon after the store is back, and the job comes first.
func TestFailedWhileTheStoreIsAway(t *testing.T) {
	for _, failed := range []jobs.Failed{jobs.KeepPlace, jobs.LetPass} {
		t.Run(fmt.Sprint(failed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				store := &muteStore{Store: f.store}
				c, err := dibs.New(store, nil)
				if err != nil {
					t.Fatal(err)
				}
				m, err := jobs.New(c, &jobs.Options{Failed: failed, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				ticket, err := m.Enqueue(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket, Stays: true}
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
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestPlaceThatRanOutInTheWait takes the place of a job away that waits in its worker:
// it has the last one then, and not again and again.
func TestPlaceThatRanOutInTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		m := f.mutex(nil)
		lease := held(t, f, "k")
		ticket, err := m.Enqueue(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		q.add(jobs.Job{Kind: "test", ID: "k/stays", Key: "k", Ticket: ticket, Stays: true})
		f.workers(q, m, 4, func(_ context.Context, id string) error {
			l.run("k", id, 1500*time.Millisecond)
			return nil
		})
		synctest.Wait()
		if err := f.client().GiveUp(t.Context(), placeOf(t, ticket)); err != nil { // the data of a Redis is lost, say
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		for _, id := range ids("k/", 10) {
			q.enqueue(t, m, "k", id)
		}
		time.Sleep(2 * time.Second)
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
		q.drain()
		f.wg.Wait()
		l.inOrder("k", append([]string{"k/stays"}, ids("k/", 10)...)...)
		f.empty()
	})
}

// TestLimitThatFailsKeepsThePlace lets the limit of a job be over that is tried again
// long after: the others of its key wait for that, as they do for every failed job.
func TestLimitThatFailsKeepsThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		m := f.mutex(&jobs.Options{Limit: time.Second, Otherwise: jobs.Fail, Recovery: time.Minute})
		second := f.mutex(&jobs.Options{Recovery: time.Minute})
		var tickets []string
		for range 2 {
			ticket, err := second.Enqueue(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			tickets = append(tickets, ticket)
		}
		first := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: tickets[1], Stays: true, Again: func(error) time.Duration { return 10 * time.Minute }}
		if err := m.Run(t.Context(), first, nothing); !errors.Is(err, dibs.ErrHeld) {
			t.Fatalf("the limit was over: %v", err)
		}
		if err := second.Run(t.Context(), jobs.Job{Kind: "test", ID: "0", Key: "k", Ticket: tickets[0]}, nothing); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		ran := make(chan time.Duration, 1)
		go func() {
			if err := second.Run(t.Context(), jobs.Job{Kind: "test", ID: "2", Key: "k", Stays: true}, nothing); err != nil {
				t.Error(err)
			}
			ran <- time.Since(start)
		}()
		time.Sleep(10 * time.Minute)
		if err := second.Run(t.Context(), first, nothing); err != nil {
			t.Error(err)
		}
		if took := <-ran; took < 10*time.Minute {
			t.Errorf("a job passed after %v one whose limit was over and that was to be tried again after 10 min", took)
		}
		f.empty()
	})
}

// TestNoPlaceForAJobThatIsDone lets a job fail for its worker that is done all the same:
// nothing of it is in the way of the next one.
func TestNoPlaceForAJobThatIsDone(t *testing.T) {
	for name, work := range map[string]func(t *testing.T, f *fixture, j jobs.Job) func(context.Context) error{
		"unheard commit": func(_ *testing.T, f *fixture, _ jobs.Job) func(context.Context) error {
			table := journal.New(f.store, journal.Unheard)
			return func(ctx context.Context) error {
				return jobs.Commit(ctx, table, func(context.Context) error { return nil })
			}
		},
		"another delivery": func(t *testing.T, f *fixture, j jobs.Job) func(context.Context) error {
			other := f.mutex(nil)
			return func(ctx context.Context) error {
				if _, err := f.store.Evict(t.Context(), f.client().Key("k"), ""); err != nil { // it stood still
					t.Error(err)
				}
				if err := other.Run(t.Context(), j, nothing); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				return ctx.Err()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				m := f.mutex(nil)
				ticket, err := m.Enqueue(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket}
				if err := m.Run(t.Context(), j, work(t, f, j)); !errors.Is(err, dibs.ErrLost) {
					t.Errorf("the job ended with %v", err)
				}
				f.empty()
			})
		})
	}
}

// TestLostKeyKeepsThePlace lets a lease run out and its job fail: the others of its key
// wait until it is tried again.
func TestLostKeyKeepsThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		c, err := dibs.New(&deafStore{Store: f.store}, &dibs.Options{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		deaf, err := jobs.New(c, &jobs.Options{Recovery: time.Minute, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer deaf.Close()
		m := f.mutex(&jobs.Options{Recovery: time.Minute})
		ticket, err := m.Enqueue(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket, Again: func(error) time.Duration { return 5 * time.Minute }}
		err = deaf.Run(t.Context(), j, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return context.Cause(ctx)
		})
		if !errors.Is(err, dibs.ErrLost) {
			t.Fatal(err)
		}
		start := time.Now()
		ran := make(chan time.Duration, 1)
		go func() {
			if err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "2", Key: "k", Stays: true}, nothing); err != nil {
				t.Error(err)
			}
			ran <- time.Since(start)
		}()
		time.Sleep(5 * time.Minute)
		if err := m.Run(t.Context(), j, nothing); err != nil {
			t.Error(err)
		}
		if took := <-ran; took < 5*time.Minute {
			t.Errorf("a job passed after %v one that had lost its key and was to be tried again after 5 min", took)
		}
		f.empty()
	})
}
