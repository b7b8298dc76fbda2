package dibsotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/dibs-go/dibs/internal/errtype"
)

// scope is the name of the instrumentation scope.
const scope = "github.com/dibs-go/dibs/dibsotel"

// Options configures a Telemetry. nil and the zero value mean the defaults.
type Options struct {
	// MeterProvider gets the metrics and TracerProvider the spans. Default: the global
	// ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Telemetry turns events into metrics and spans. Each method is for one option: Lease and
// StoreCall for dibs.Options, Request for idempotency.Options, Job for jobs.Options. It is
// safe for concurrent use.
type Telemetry struct {
	tracer trace.Tracer

	claims, leases, calls, requests, jobPhases metric.Float64Histogram
	undone, elements, unstored, jobOutcomes    metric.Int64Counter
	active                                     metric.Int64UpDownCounter
}

// seconds are the histogram bounds of durations, from a local store to a job.
var seconds = metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

// New creates the instruments. It returns the errors of the MeterProvider, joined.
func New(o *Options) (*Telemetry, error) {
	if o == nil {
		o = &Options{}
	}
	meters, tracers := o.MeterProvider, o.TracerProvider
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	t, meter := &Telemetry{tracer: tracers.Tracer(scope)}, meters.Meter(scope)
	var failed error
	duration := func(name, text string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), seconds, metric.WithDescription(text))
		failed = errors.Join(failed, err)
		return h
	}
	counter := func(name, unit, text string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		failed = errors.Join(failed, err)
		return c
	}
	t.claims = duration("dibs.claim.duration", "From a claim to its grant or refusal.")
	t.undone = counter("dibs.claim.undone", "{claim}", "Claims undone because the caller's context ended or the answer was lost.")
	t.leases = duration("dibs.lease.duration", "How long keys were held.")
	t.calls = duration("dibs.store.call.duration", "How long calls of the store took.")
	t.elements = counter("dibs.store.call.elements", "{element}", "Claims, renewals and settlements in the calls of the store.")
	t.requests = duration("dibs.request.duration", "How long requests took after their body was read.")
	t.unstored = counter("dibs.request.unstored", "{answer}", "Answers that were sent without being stored.")
	t.jobOutcomes = counter("dibs.job.count", "{job}", "Jobs by their outcome.")
	t.jobPhases = duration("dibs.job.duration", "How long jobs waited for their turn, and how long they ran.")
	var err error
	t.active, err = meter.Int64UpDownCounter("dibs.lease.active", metric.WithUnit("{lease}"), metric.WithDescription("Leases held now."))
	if failed = errors.Join(failed, err); failed != nil {
		return nil, failed
	}
	// Prometheus needs the counter's zero to see its first increment.
	t.active.Add(context.Background(), 0)
	t.undone.Add(context.Background(), 0)
	t.unstored.Add(context.Background(), 0)
	return t, nil
}

// of returns a measurement's attributes.
func of(attributes ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attributes...))
}

func outcome(text string) attribute.KeyValue { return attribute.String("dibs.outcome", text) }

// errorType returns error.type of the semantic conventions. docs/operate/incidents.md lists the values.
func errorType(err error) attribute.KeyValue { return attribute.String("error.type", errtype.Of(err)) }
