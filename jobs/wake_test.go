package jobs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/jobs"
)

// TestWakeIsAskedAgain has a queue that cannot be asked for a moment when a job is to be
// made runnable, as its connection was cut.
func TestWakeIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		m := f.mutex(&jobs.Options{Seats: -1})
		lease := held(t, f, "k")
		var asked atomic.Int64
		woken := make(chan time.Time, 1)
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Wake: func(context.Context) (bool, error) {
			if asked.Add(1) <= 3 {
				return false, errors.New("connection reset")
			}
			woken <- time.Now()
			return true, nil
		}}
		if _, ok := errors.AsType[*jobs.ComeBackError](m.Run(t.Context(), j, nothing)); !ok {
			t.Fatal("a job ran although its key was held")
		}
		synctest.Wait()
		start := time.Now()
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
		select {
		case at := <-woken:
			if took := at.Sub(start); took > time.Second {
				t.Errorf("the job was made runnable after %v", took)
			}
		case <-time.After(time.Minute):
			t.Errorf("nobody made the job runnable; the queue was asked %d times", asked.Load())
		}
		if err := m.Run(t.Context(), j, nothing); err != nil {
			t.Error(err)
		}
		f.empty()
	})
}

// TestCloseBesideAWakeThatHangs closes a Mutex while the queue does not answer for one
// job: those of other keys are made runnable all the same.
func TestCloseBesideAWakeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		m := f.mutex(&jobs.Options{Seats: -1})
		j, k := held(t, f, "j"), held(t, f, "k")
		var woken atomic.Bool
		for _, job := range []jobs.Job{
			{Kind: "test", ID: "1", Key: "j", Wake: func(ctx context.Context) (bool, error) {
				<-ctx.Done()
				return false, ctx.Err()
			}},
			{Kind: "test", ID: "2", Key: "k", Wake: func(context.Context) (bool, error) {
				woken.Store(true)
				return true, nil
			}},
		} {
			if _, ok := errors.AsType[*jobs.ComeBackError](m.Run(t.Context(), job, nothing)); !ok {
				t.Fatal("a job ran although its key was held")
			}
		}
		if err := j.Release(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it is called, and hangs
		m.Close()
		if !woken.Load() {
			t.Error("Close left a job in its queue because that did not answer for another")
		}
		if err := k.Release(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBackWithoutItsProcess: a job whose turn is near comes back by itself, should the
// process have ended that put it off: soon, however long Recovery is, and well within it.
func TestBackWithoutItsProcess(t *testing.T) {
	for recovery, soonest := range map[time.Duration]time.Duration{
		8 * time.Second: 2 * time.Second,
		2 * time.Minute: 30 * time.Second,
		12 * time.Hour:  30 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			m := f.mutex(&jobs.Options{Recovery: recovery, Seats: -1})
			lease := held(t, f, "k")
			j := jobs.Job{Kind: "test", ID: "1", Key: "k", Wake: func(context.Context) (bool, error) { return true, nil }}
			back, ok := errors.AsType[*jobs.ComeBackError](m.Run(t.Context(), j, nothing))
			if !ok || back.After < soonest || back.After > 2*soonest {
				t.Errorf("Recovery %v: the job is to come back so: %+v; want after %v to twice that", recovery, back, soonest)
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
