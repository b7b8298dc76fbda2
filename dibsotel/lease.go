package dibsotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/dibs-go/dibs"
)

// Lease is for dibs.Options.Observe.
func (t *Telemetry) Lease(ctx context.Context, e dibs.Event) {
	traced := trace.SpanContextFromContext(ctx).IsSampled()
	switch e.Kind {
	case dibs.EventAcquired, dibs.EventRefused:
		became := outcomeOf(ctx, e)
		t.claims.Record(ctx, e.Waited.Seconds(), claimed[claim{became, e.Queued}])
		if e.Kind == dibs.EventAcquired && !e.InTx {
			t.active.Add(ctx, 1)
		}
		if traced {
			t.claim(ctx, e, became)
		}
	default:
		t.active.Add(ctx, -1)
		t.leases.Record(ctx, e.Held.Seconds(), ended[e.Kind])
		if traced {
			t.lease(ctx, e)
		}
	}
}

// claim makes the span of a finished claim.
func (t *Telemetry) claim(ctx context.Context, e dibs.Event, what string) {
	now, name := time.Now(), "dibs.claim"
	if e.Queued {
		name = "dibs.wait"
	}
	t.span(ctx, name, now.Add(-e.Waited), now, e, what)
}

// lease makes the spans of a finished lease.
func (t *Telemetry) lease(ctx context.Context, e dibs.Event) {
	now := time.Now()
	settling := now.Add(-e.Settled)
	t.span(ctx, "dibs.run", now.Add(-e.Held), settling, e, string(e.Kind))
	if e.Settled > 0 {
		t.span(ctx, "dibs.settle", settling, now, e, string(e.Kind))
	}
}

// StoreCall is for dibs.Options.ObserveStore.
func (t *Telemetry) StoreCall(c dibs.StoreCall) {
	ctx := context.Background()
	call := attribute.String("dibs.call", c.Verb)
	if c.Err != nil {
		t.calls.Record(ctx, c.Took.Seconds(), of(call, errorType(c.Err)))
		return
	}
	t.calls.Record(ctx, c.Took.Seconds(), called[c.Verb])
	t.elements.Add(ctx, int64(c.Size), called[c.Verb])
	if c.Undone > 0 {
		t.undone.Add(ctx, int64(c.Undone))
	}
}

// claim is the attributes of a claim.
type claim struct {
	outcome string
	queued  bool
}

// refusals names the reasons of refused claims. The first match counts; other errors are
// "error".
var refusals = []struct {
	err  error
	name string
}{
	{dibs.ErrHeld, "held"}, {dibs.ErrDone, "done"}, {dibs.ErrMismatch, "mismatch"},
	{dibs.ErrUnknown, "unknown"}, {dibs.ErrFull, "full"}, {dibs.ErrBusy, "busy"}, {dibs.ErrLost, "lost"},
	{dibs.ErrClosed, "closed"}, {dibs.ErrStore, "unanswered"},
	{context.DeadlineExceeded, "timeout"}, {context.Canceled, "canceled"},
}

// outcomeOf names the outcome of a claim. It also looks at the context's error, because a
// context may end with a cause of the caller.
func outcomeOf(ctx context.Context, e dibs.Event) string {
	if e.Kind == dibs.EventAcquired {
		return string(e.Kind)
	}
	for _, err := range []error{e.Err, ctx.Err()} {
		for _, r := range refusals {
			if errors.Is(err, r.err) {
				return r.name
			}
		}
	}
	return "error"
}

// Attributes of frequent measurements, made once.
var (
	claimed = map[claim]metric.MeasurementOption{}
	ended   = map[dibs.EventKind]metric.MeasurementOption{}
	called  = map[string]metric.MeasurementOption{}
)

func init() {
	names := []string{string(dibs.EventAcquired), "error"}
	for _, r := range refusals {
		names = append(names, r.name)
	}
	for _, name := range names {
		for _, queued := range []bool{false, true} {
			claimed[claim{name, queued}] = of(outcome(name), attribute.Bool("dibs.queued", queued))
		}
	}
	for _, kind := range []dibs.EventKind{dibs.EventReleased, dibs.EventCompleted, dibs.EventAbandoned, dibs.EventLost} {
		ended[kind] = of(outcome(string(kind)))
	}
	for _, verb := range []string{"claim", "renew", "settle"} {
		called[verb] = of(attribute.String("dibs.call", verb))
	}
}

// span makes a span of the past.
func (t *Telemetry) span(ctx context.Context, name string, from, to time.Time, e dibs.Event, what string) {
	_, s := t.tracer.Start(ctx, name, trace.WithTimestamp(from), trace.WithAttributes(outcome(what)))
	s.SetAttributes(identity(e.Key(), e.Fence, e.Attempt)...)
	if e.Err != nil && !errors.Is(e.Err, dibs.ErrHeld) && !errors.Is(e.Err, dibs.ErrDone) { // these are answers
		s.SetStatus(codes.Error, what)
	}
	s.End(trace.WithTimestamp(to))
}

// identity returns the key's attributes. An attribute has 63 bits for a fence of 64.
func identity(key string, fence uint64, attempt int) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("dibs.key", key), attribute.Int64("dibs.fence", int64(fence)), attribute.Int("dibs.attempt", attempt),
	}
}
