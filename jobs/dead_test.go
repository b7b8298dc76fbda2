package jobs_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

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

// TestRequeuedJobIsWaitedForUntilItComes: a job that found no room keeps its turn for as long as
// it was requeued for, however short Grace is.
func TestRequeuedJobIsWaitedForUntilItComes(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(&jobs.Options{Grace: time.Millisecond})
		holder := f.held("k")
		first := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")} // of no pool, so it never waits
		back, ok := m.Run(t.Context(), first, nothing).(*jobs.RequeueError)
		if !ok {
			t.Fatal("it was not requeued")
		}
		testkit.Must(t, holder.Release())
		f.othersWait(m, first, back.After)
		f.empty()
	})
}
