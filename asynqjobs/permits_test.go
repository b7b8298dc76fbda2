package asynqjobs

import (
	"context"
	"fmt"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/jobs"
)

// TestPermitsThatDifferUseNoAttempt: tasks that were enqueued by a version with another
// number of permits are not tried again when they fail, and run.
func TestPermitsThatDifferUseNoAttempt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ old, new int }{{1, 2}, {3, 1}} {
		t.Run(fmt.Sprint(c.old, " to ", c.new), func(t *testing.T) {
			t.Parallel()
			r := ownRedis(t)
			before := newFixture(t, r, &jobs.Options{Permits: c.old})
			for i := range 3 {
				before.enqueue(t, job("k", fmt.Sprint(i), asynq.MaxRetry(0)))
			}
			after := newFixture(t, r, &jobs.Options{Permits: c.new})
			var did record
			after.serve(t, asynq.Config{
				ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, task *asynq.Task, err error) {
					t.Errorf("task %s failed: %v", task.Payload(), err)
				}),
			}, func(_ context.Context, task *asynq.Task) error {
				did.add("%s", task.Payload())
				return nil
			})
			eventually(t, "all have run", func() bool { return len(did.read()) == 3 })
			if s := after.mutex.Stats(); s.PutOff == 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
