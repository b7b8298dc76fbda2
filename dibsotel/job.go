package dibsotel

import (
	"context"

	"github.com/dibs-go/dibs/jobs"
)

// Job is for jobs.Options.Observe. Jobs have no spans of their own: their leases do.
func (t *Telemetry) Job(ctx context.Context, e jobs.Event) {
	t.jobOutcomes.Add(ctx, 1, of(outcome(string(e.Event))))
	if e.Event == jobs.EventAcquired {
		t.phase(ctx, t.jobPhases, waiting, e.Waited)
	} else {
		t.phase(ctx, t.jobPhases, running, e.Ran)
	}
}
