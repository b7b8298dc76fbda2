// Package metrics has the metrics of the program, for Prometheus.
package metrics

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	api "go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"

	"github.com/dibs-go/dibs/dibsotel"
)

// Metrics are the metrics of dibsotel, and the use of CPU and memory.
type Metrics struct {
	*dibsotel.Telemetry
	registry *prometheus.Registry
	meter    api.Meter
}

// New returns metrics.
func New() (*Metrics, error) {
	return start()
}

func start(options ...metric.Option) (*Metrics, error) {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := exporter.New(exporter.WithRegisterer(m.registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	provider := metric.NewMeterProvider(append(options, metric.WithReader(reader), metric.WithExemplarFilter(exemplar.AlwaysOffFilter))...)
	m.meter = provider.Meter("github.com/dibs-go/dibs/cmd/dibs")
	m.Telemetry, err = dibsotel.New(&dibsotel.Options{MeterProvider: provider})
	return m, err
}

// namespaceLabel is the label of the metrics that are of one namespace.
const namespaceLabel = "dibs_namespace"

// Handler serves the metrics of a namespace: those with its label. nil is all metrics.
func (m *Metrics) Handler(namespace *string) http.Handler {
	if namespace == nil {
		return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	}
	foreign := func(metric *dto.Metric) bool {
		return !slices.ContainsFunc(metric.Label, func(l *dto.LabelPair) bool {
			return l.GetName() == namespaceLabel && l.GetValue() == *namespace
		})
	}
	return promhttp.HandlerFor(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := m.registry.Gather()
		for _, f := range families {
			f.Metric = slices.DeleteFunc(f.Metric, foreign)
		}
		return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 }), err
	}), promhttp.HandlerOpts{})
}

// Run are the metrics of one run of a command. They are gauges: a counter or a histogram of one
// run would begin at zero each time.
type Run struct {
	registry *prometheus.Registry
	labelled prometheus.Registerer
}

// NewRun returns metrics with the label run, so that a node exporter can read the files of several
// runs.
func NewRun(run string) *Run {
	r := prometheus.NewRegistry()
	return &Run{registry: r, labelled: prometheus.WrapRegistererWith(prometheus.Labels{"run": run}, r)}
}

// Set adds a gauge with a value.
func (r *Run) Set(name, help string, value float64) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	g.Set(value)
	r.labelled.MustRegister(g)
}

// WriteFile writes the metrics to a file for a node exporter, in one step.
func (r *Run) WriteFile(name string) error {
	return prometheus.WriteToTextfile(name, r.registry)
}
