package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/journal"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

// TestEndingsOfATransaction runs a job again and again until it is done, as a queue
// does, with a transaction that first ends in each way that there is.
func TestEndingsOfATransaction(t *testing.T) {
	for _, c := range []struct {
		end    journal.Ending
		once   bool
		deemed bool // done although the first attempt did not learn it
	}{
		{end: journal.Committed}, {end: journal.Conflicted}, {end: journal.Refused},
		{end: journal.CutOff}, {end: journal.Unbegun},
		{end: journal.Committed, once: true}, {end: journal.Conflicted, once: true}, {end: journal.Refused, once: true},
		{end: journal.Unanswered, once: true}, {end: journal.CutOff, once: true}, {end: journal.Unbegun, once: true},
	} {
		simulateAs(t, fmt.Sprintf("%+v", c), func(t *testing.T, f *fixture) {
			table := journal.New(f.store, c.end)
			o := &jobs.Options{}
			if c.once {
				o.Once, o.Transactor = time.Hour, table
			}
			m := f.mutex(o)
			j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")}
			write := func(ctx context.Context) error { journal.Write(ctx, "booked"); return nil }
			work := write
			if !c.once {
				work = func(ctx context.Context) error { return jobs.Commit(ctx, table, write) }
			}
			tries := 0
			err := m.Run(t.Context(), j, work)
			for ; err != nil && tries < 3; err = m.Run(t.Context(), j, work) {
				tries++
			}
			if rows := table.Rows(); err != nil || !slices.Equal(rows, []string{"booked"}) {
				t.Errorf("after %d tries more: %v, %v; want it booked once", tries, rows, err)
			}
			f.empty()
		})
	}
}

func TestCommitThatFails(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		table := journal.New(f.store)
		m := f.mutex(nil)
		accident := errors.New("an accident")
		j := jobs.Job{Kind: "test", ID: "1", Key: "k"}
		err := m.Run(t.Context(), j, func(ctx context.Context) error {
			return jobs.Commit(ctx, table, func(ctx context.Context) error {
				journal.Write(ctx, "half")
				return accident
			})
		})
		if !errors.Is(err, accident) || len(table.Rows()) > 0 {
			t.Errorf("%v, %v; want the error and nothing written", err, table.Rows())
		}
		// A worker that lost its key cannot commit.
		err = m.Run(t.Context(), j, func(ctx context.Context) error {
			return jobs.Commit(ctx, table, func(ctx context.Context) error {
				journal.Write(ctx, "late")
				_, err := f.store.ForceRelease(context.WithoutCancel(ctx), dibs.Key{Name: "k"}, "")
				return err
			})
		})
		if !errors.Is(err, dibs.ErrLost) || len(table.Rows()) > 0 {
			t.Errorf("%v, %v; want ErrLost and nothing written", err, table.Rows())
		}
		if err := jobs.Commit(t.Context(), table, nothing); !errors.Is(err, dibs.ErrNoLease) {
			t.Errorf("outside of a job: %v", err)
		}
	})
}

func TestEnqueueInATransaction(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(nil)
		var tx pending
		ticket, err := m.EnqueueIn(t.Context(), &tx, jobs.Job{Key: "k"})
		if err != nil || len(tx) != 1 || tx[0].Mode != store.Reserve || tx[0].Grace != jobs.DefaultGrace {
			t.Fatalf("%v, %+v", err, tx)
		}
		f.empty() // until it commits
		testkit.Must(t, f.store.Claim(t.Context(), tx, make([]store.Answer, 1)))
		if err := f.client().TryDo(t.Context(), "k", nothing); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("the place does not stand after the commit: %v", err)
		}
		testkit.Must(t, m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket}, nothing))
		full := errors.New("the table is full")
		if _, err := m.EnqueueIn(t.Context(), failing{full}, jobs.Job{Key: "k"}); !errors.Is(err, full) {
			t.Errorf("a place that could not be taken: %v", err)
		}
		f.empty()
	})
}

// pending is a transaction that takes places.
type pending []store.Claim

func (p *pending) Reserve(_ context.Context, claims []store.Claim) error {
	*p = append(*p, claims...)
	return nil
}

type failing struct{ err error }

func (f failing) Reserve(context.Context, []store.Claim) error { return f.err }

// TestShutdownGivesKeysUp ends the contexts of a pool's jobs, as a queue does that is
// stopped at once.
func TestShutdownGivesKeysUp(t *testing.T) {
	for _, failed := range []jobs.Failed{jobs.KeepPlace, jobs.LetPass} {
		simulateAs(t, failed, func(t *testing.T, f *fixture) {
			leaving, staying := f.mutex(&jobs.Options{Failed: failed}), f.mutex(&jobs.Options{Failed: failed})
			var tickets []string
			for range 2 {
				tickets = append(tickets, f.ticket(leaving, "k"))
			}
			job := func(i int) jobs.Job { return jobs.Job{Kind: "test", ID: fmt.Sprint(i), Key: "k", Ticket: tickets[i]} }
			pool, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- leaving.Run(pool, job(0), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			}()
			synctest.Wait()
			leaving.Close()
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the job that was stopped ended with %v", err)
			}
			start := time.Now()
			next := 0 // the order is kept
			if failed == jobs.LetPass {
				next = 1
			}
			for range 2 {
				testkit.Must(t, staying.Run(t.Context(), job(next), nothing))
				next = 1 - next
			}
			if took := time.Since(start); took > 0 {
				t.Errorf("the key of a pool that was shut down was free after %v", took)
			}
			f.empty()
		})
	}
}
