// Package metrics is what the program measures, in the form in which Prometheus reads it.
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

// Metrics are those of dibsotel, and others of the program's own: without a run, what it
// takes of the processor and of memory.
type Metrics struct {
	*dibsotel.Telemetry
	registry *prometheus.Registry
	labelled prometheus.Registerer
}

// New returns metrics of which nothing has happened yet. If there is a run, each has its
// name as a label, so that the files of several runs go together.
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

// Handler serves them.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Set adds a number of the program's own.
func (m *Metrics) Set(name, help string, value float64) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	g.Set(value)
	m.labelled.MustRegister(g)
}

// WriteFile writes them to a file that a node's exporter reads, all or nothing.
func (m *Metrics) WriteFile(name string) error {
	return prometheus.WriteToTextfile(name, m.registry)
}
