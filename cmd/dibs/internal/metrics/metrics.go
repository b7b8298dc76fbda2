// Package metrics has the metrics of the program, for Prometheus.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"

	"github.com/dibs-go/dibs/dibsotel"
)

// Metrics are the metrics of dibsotel, and the program's own.
type Metrics struct {
	*dibsotel.Telemetry
	registry *prometheus.Registry
	labelled prometheus.Registerer
}

// New returns metrics. If run is "", they include the use of CPU and memory. Otherwise each
// metric has the label run, so that a node exporter can read the files of several runs.
func New(run string) (*Metrics, error) {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.labelled = m.registry
	if run == "" {
		m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	} else {
		m.labelled = prometheus.WrapRegistererWith(prometheus.Labels{"run": run}, m.registry)
	}
	reader, err := exporter.New(exporter.WithRegisterer(m.labelled), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	m.Telemetry, err = dibsotel.New(&dibsotel.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader), metric.WithExemplarFilter(exemplar.AlwaysOffFilter))})
	return m, err
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Set adds a gauge with a value.
func (m *Metrics) Set(name, help string, value float64) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	g.Set(value)
	m.labelled.MustRegister(g)
}

// WriteFile writes the metrics to a file for a node exporter, in one step.
func (m *Metrics) WriteFile(name string) error {
	return prometheus.WriteToTextfile(name, m.registry)
}
