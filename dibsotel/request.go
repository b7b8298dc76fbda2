package dibsotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/dibs-go/dibs/idempotency"
)

// Request is for idempotency.Options.Observe.
func (t *Telemetry) Request(ctx context.Context, e idempotency.Event) {
	took := e.Waiting + e.Claiming + e.Handler + e.Settling
	t.requests.Record(ctx, took.Seconds(), requestOutcome(e.Kind))
	if e.StoreFailed {
		t.unstored.Add(ctx, 1)
	}
	if !e.Start.IsZero() && trace.SpanContextFromContext(ctx).IsSampled() {
		t.trace(ctx, e)
	}
}

// Trace is for idempotency.Options.Trace: it returns the context's span as a traceparent,
// or "".
func Trace(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// requestOutcomes are the attributes of outcomes, made once.
var requestOutcomes = map[idempotency.EventKind]metric.MeasurementOption{}

func init() {
	for _, o := range []idempotency.EventKind{
		idempotency.EventUnguarded, idempotency.EventRan, idempotency.EventReplayed, idempotency.EventConflict,
		idempotency.EventMismatch, idempotency.EventNotKept, idempotency.EventUnknown, idempotency.EventInvalid,
		idempotency.EventTooLarge, idempotency.EventOverloaded, idempotency.EventUnavailable, idempotency.EventBypassed, idempotency.EventLost,
		idempotency.EventInterrupted, idempotency.EventRolledBack, idempotency.EventUnreached, idempotency.EventHeldBack, idempotency.EventCanceled,
	} {
		requestOutcomes[o] = of(outcome(string(o)))
	}
}

func requestOutcome(o idempotency.EventKind) metric.MeasurementOption {
	if made, ok := requestOutcomes[o]; ok {
		return made
	}
	return of(outcome(string(o)))
}

// trace makes the spans of a request's parts, in their order.
func (t *Telemetry) trace(ctx context.Context, e idempotency.Event) {
	attributes := append(identity(e.Key(), e.Fence, e.Attempt), outcome(string(e.Kind)))
	from := e.Start
	for _, part := range []struct {
		name string
		took time.Duration
	}{{"dibs.wait", e.Waiting}, {"dibs.claim", e.Claiming}, {"dibs.run", e.Handler}, {"dibs.settle", e.Settling}} {
		if part.took > 0 {
			t.part(ctx, part.name, from, part.took, attributes)
			from = from.Add(part.took)
		}
	}
	if e.Kind == idempotency.EventReplayed {
		t.part(ctx, "dibs.replay", from, time.Since(from), attributes, links(e.First)...)
	}
}

func (t *Telemetry) part(ctx context.Context, name string, from time.Time, took time.Duration, attributes []attribute.KeyValue, options ...trace.SpanStartOption) {
	_, s := t.tracer.Start(ctx, name, append(options, trace.WithTimestamp(from), trace.WithAttributes(attributes...))...)
	s.End(trace.WithTimestamp(from.Add(took)))
}

// links returns a link to the run of a replayed answer, if that run was traced.
func links(first string) []trace.SpanStartOption {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": first})
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return nil
	}
	return []trace.SpanStartOption{trace.WithLinks(trace.Link{SpanContext: span})}
}
