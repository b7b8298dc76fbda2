package metrics

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	api "go.opentelemetry.io/otel/metric"

	"github.com/dibs-go/dibs/internal/survey"
)

// Live adds the metrics of the live keys of a store: how many claims wait, how long the oldest
// has waited, and how many outcomes are unknown. They are of one namespace, or of all if it is nil. A
// report is at most 15 s old, unless the store takes long. While the store fails there are none.
func (m *Metrics) Live(s *survey.Survey, namespace *string) error {
	var failed [4]error
	var waiters, unknown api.Int64ObservableGauge
	var oldest api.Float64ObservableGauge
	waiters, failed[0] = m.meter.Int64ObservableGauge("dibs.waiters", api.WithUnit("{claim}"),
		api.WithDescription("Claims that wait now, of all callers of the store."))
	oldest, failed[1] = m.meter.Float64ObservableGauge("dibs.oldest_wait", api.WithUnit("s"),
		api.WithDescription("How long the oldest of them has been seen to wait."))
	unknown, failed[2] = m.meter.Int64ObservableGauge("dibs.unknown", api.WithUnit("{key}"),
		api.WithDescription("Keys whose outcome is unknown until an operator resolves them."))
	_, failed[3] = m.meter.RegisterCallback(func(ctx context.Context, o api.Observer) error {
		r, err := s.Look(ctx, survey.MetricsAge)
		if err != nil {
			return nil // the metrics of the store's calls count it
		}
		counts := r.Namespaces
		if namespace != nil {
			counts = map[string]survey.Counts{*namespace: counts[*namespace]}
		}
		for name, c := range counts {
			of := api.WithAttributeSet(attribute.NewSet(attribute.String("dibs.namespace", name)))
			o.ObserveInt64(waiters, int64(c.Waiters), of)
			o.ObserveFloat64(oldest, c.OldestWait.Seconds(), of)
			o.ObserveInt64(unknown, int64(c.Unknown), of)
		}
		return nil
	}, waiters, oldest, unknown)
	return errors.Join(failed[:]...)
}
