package jobs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// held returns a lease on the key, as somebody else's job has it.
func held(t *testing.T, f *fixture, key string) *dibs.Lease {
	t.Helper()
	lease, err := f.client().Acquire(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func nothing(context.Context) error { return nil }

func TestCancelledWhileItWaits(t *testing.T) {
	for _, last := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			m := f.mutex(nil)
			lease := held(t, f, "k")
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- m.Run(ctx, jobs.Job{Kind: "test", ID: "1", Key: "k", Pool: jobs.Pool{Workers: 2}, Last: func(error) bool { return last }}, nothing)
			}()
			synctest.Wait()
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			busy, err := f.client().Held(t.Context(), "k")
			if err != nil || busy == last {
				t.Errorf("last %v: a place stands %v, %v", last, busy, err)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	for _, o := range []jobs.Options{{}, {Policy: jobs.Wait, Wait: time.Hour}, {Policy: jobs.Wait, Wait: 2500 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			m := f.mutex(&o)
			patience := time.Hour
			if o.Wait != 2500*time.Millisecond {
				patience = 2500 * time.Millisecond
			}
			lease := held(t, f, "k")
			start := time.Now()
			err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Pool: jobs.Pool{Workers: 2}, Patience: patience}, nothing)
			if _, ok := errors.AsType[*jobs.ComeBackError](err); !ok || time.Since(start) != 2500*time.Millisecond {
				t.Errorf("%+v: %v after %v, want to come back after 2.5 s", o, err, time.Since(start))
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
