package dibsotel_test

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

func TestHouse(t *testing.T) {
	otel := "go.opentelemetry.io/otel"
	house.Check(t, []house.Room{
		{
			Dir:     ".",
			Imports: []string{house.Root, house.Root + "/idempotency", house.Root + "/internal/errtype", house.Root + "/jobs", otel, otel + "/attribute", otel + "/codes", otel + "/metric", otel + "/propagation", otel + "/trace"},
			Tests:   []string{house.Root + "/store", house.Root + "/stores/memstore", house.Root + "/internal/prove/house", otel + "/sdk/metric", otel + "/sdk/metric/metricdata", otel + "/sdk/trace", otel + "/sdk/trace/tracetest"},
		},
	})
}
