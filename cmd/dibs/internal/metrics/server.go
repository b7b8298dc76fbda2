package metrics

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	api "go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/dibs-go/dibs/cmd/dibs/internal/serve"
)

// Server are the metrics of dibs serve.
type Server struct {
	*Metrics
	calls    api.Float64Histogram
	elements api.Int64Counter
	waiting  api.Int64UpDownCounter
}

// NewServer returns the metrics of a server. Those of leases, requests and jobs are left out,
// because its clients have them.
func NewServer() (*Server, error) {
	var views []metric.Option
	for _, name := range []string{"dibs.claim.*", "dibs.lease.*", "dibs.request.*", "dibs.job.*"} {
		views = append(views, metric.WithView(metric.NewView(metric.Instrument{Name: name}, metric.Stream{Aggregation: metric.AggregationDrop{}})))
	}
	m, err := start(views...)
	if err != nil {
		return nil, err
	}
	s := &Server{Metrics: m}
	meter := m.meter
	var failed [3]error
	s.calls, failed[0] = meter.Float64Histogram("http.server.request.duration", api.WithUnit("s"),
		api.WithDescription("How long calls took."),
		api.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60))
	s.elements, failed[1] = meter.Int64Counter("dibs.serve.elements", api.WithUnit("{element}"),
		api.WithDescription("Claims, renewals and settlements by what they were answered."))
	s.waiting, failed[2] = meter.Int64UpDownCounter("dibs.serve.waiting", api.WithUnit("{claim}"),
		api.WithDescription("Claims that wait now."))
	if err := errors.Join(failed[:]...); err != nil {
		return nil, err
	}
	s.waiting.Add(context.Background(), 0)
	return s, nil
}

// methods are what http.request.method can be. A client may send any other text.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"}

// Call is for serve.Hooks.Call. Its attributes follow OpenTelemetry's conventions for HTTP servers.
func (s *Server) Call(c serve.Call) {
	ctx := context.Background()
	if !slices.Contains(methods, c.Method) {
		c.Method = "_OTHER"
	}
	attributes := []attribute.KeyValue{
		attribute.String("http.request.method", c.Method), attribute.String("http.route", c.Route), attribute.Bool("dibs.waited", c.Waited),
	}
	if c.Status != 0 {
		attributes = append(attributes, attribute.Int("http.response.status_code", c.Status))
	}
	if c.Problem != "" {
		attributes = append(attributes, attribute.String("error.type", c.Problem))
	}
	s.calls.Record(ctx, c.Took.Seconds(), api.WithAttributeSet(attribute.NewSet(attributes...)))
	for outcome, n := range c.Outcomes {
		s.elements.Add(ctx, int64(n), api.WithAttributeSet(attribute.NewSet(
			attribute.String("dibs.call", c.Verb), attribute.String("dibs.outcome", outcome))))
	}
}

// Waiting is for serve.Hooks.Waiting.
func (s *Server) Waiting(claims int64) { s.waiting.Add(context.Background(), claims) }
