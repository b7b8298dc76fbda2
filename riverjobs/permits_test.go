package riverjobs

import (
	"context"
	"fmt"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
)

// TestPermitsThatDifferUseNoAttempt: jobs that were enqueued by a version with another
// number of permits have one attempt, and run.
func TestPermitsThatDifferUseNoAttempt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ old, new int }{{1, 2}, {3, 1}} {
		t.Run(fmt.Sprint(c.old, " to ", c.new), func(t *testing.T) {
			t.Parallel()
			before := newHost(t, hostOptions{mutex: Options{Jobs: jobs.Options{Permits: c.old}}, idle: true})
			var ids []int64
			for i := range 3 {
				ids = append(ids, before.insert("it", i, &river.InsertOpts{MaxAttempts: 1}).ID)
			}
			after := newHost(t, hostOptions{
				url: before.url, mutex: Options{Jobs: jobs.Options{Permits: c.new}},
				work: func(context.Context, *host, *river.Job[job]) error { return nil },
			})
			for _, id := range ids {
				if row := after.await(id, rivertype.JobStateCompleted); row.Attempt != 1 || len(row.Errors) > 0 {
					t.Errorf("job %d is at its attempt %d, with the errors %v", id, row.Attempt, row.Errors)
				}
			}
			if s := after.mutex.Stats(); s.PutOff == 0 || s.Succeeded != 3 {
				t.Errorf("%+v", s)
			}
		})
	}
}
