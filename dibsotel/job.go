package dibsotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/dibs-go/dibs/jobs"
)

// Job is for jobs.Options.Observe. Jobs have no spans of their own, because their leases
// have.
func (t *Telemetry) Job(ctx context.Context, e jobs.Event) {
	t.jobOutcomes.Add(ctx, 1, of(outcome(string(e.Kind))))
	switch e.Kind {
	case jobs.EventAcquired:
		t.jobPhases.Record(ctx, e.Waited.Seconds(), waiting)
	case jobs.EventSucceeded, jobs.EventFailed, jobs.EventLost:
		t.jobPhases.Record(ctx, e.Ran.Seconds(), running)
	}
}

var (
	waiting = of(attribute.String("dibs.phase", "waiting"))
	running = of(attribute.String("dibs.phase", "running"))
)
