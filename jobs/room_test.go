package jobs_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/jobs"
)

// TestHalfOfAPoolWaits: at most half of the workers of a pool have a job that waits for
// its turn, whatever its key; all others come back, parked where the queue promotes them.
func TestHalfOfAPoolWaits(t *testing.T) {
	for workers, want := range map[int]int{0: 0, 1: 0, 2: 1, 5: 2, 10: 5} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			m := f.mutex(nil)
			one, two := held(t, f, "a"), held(t, f, "b")
			came := make(chan error, 2*workers+2)
			run := func(i int, pool jobs.Pool, key string) {
				j := jobs.Job{Kind: "test", ID: strconv.Itoa(i), Key: key, Pool: pool, Promoted: i%2 == 0}
				err := m.Run(t.Context(), j, func(context.Context) error { return nil })
				if back, ok := errors.AsType[*jobs.ComeBackError](err); ok && back.Parked != j.Promoted {
					t.Errorf("promoted %v, and it comes back as %+v", j.Promoted, back)
				}
				came <- err
			}
			for i := range 2*workers + 2 {
				go run(i, jobs.Pool{Workers: workers}, []string{"a", "b"}[i%2])
			}
			synctest.Wait()
			if n := m.Stats().Waiting; n != want || len(came) != 2*workers+2-want {
				t.Errorf("of %d workers %d have a job that waits, and %d came back; want %d", workers, n, len(came), want)
			}
			// Another pool has room of its own.
			other := make(chan error, 1)
			go func() {
				other <- m.Run(t.Context(), jobs.Job{Kind: "test", ID: "other", Key: "a", Pool: jobs.Pool{Name: "other", Workers: 2}}, func(context.Context) error { return nil })
			}()
			synctest.Wait()
			if n := m.Stats().Waiting; n != want+1 {
				t.Errorf("%d jobs wait, want one more than %d", n, want)
			}
			for _, lease := range []interface{ Release() error }{one, two} {
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			}
			if err := <-other; err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := m.Stats().Waiting; n != 0 {
				t.Errorf("%d jobs still wait", n)
			}
		})
	}
}
