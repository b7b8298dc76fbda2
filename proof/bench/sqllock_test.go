package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	_ "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/dibsotel"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/sqllock"
)

// TestWaitsOfSQLLocks: dibsotel makes metrics and spans of the locks of sqllock. A lock of the
// application's transaction is not counted as active, because its end is not seen. This module is
// the one that has both.
func TestWaitsOfSQLLocks(t *testing.T) {
	reader, spans := metric.NewManualReader(), tracetest.NewSpanRecorder()
	tracers := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	telemetry, err := dibsotel.New(&dibsotel.Options{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)), TracerProvider: tracers,
	})
	testkit.Must(t, err)
	ctx, root := tracers.Tracer("test").Start(t.Context(), "root")
	scope := servertest.NewScope()
	defer scope.Close()
	db, err := sql.Open("pgx", servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true}).URL())
	testkit.Must(t, err)
	defer db.Close()
	file, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "app.db"))
	testkit.Must(t, err)
	defer file.Close()
	nothing := func(context.Context) error { return nil }
	const wait = 30 * time.Millisecond

	locks, err := sqllock.NewAdvisory(ctx, db, &sqllock.AdvisoryOptions{Observe: telemetry.Lease})
	testkit.Must(t, err)
	testkit.Must(t, locks.Do(ctx, sqllock.IntKey(1), nil, nothing))
	testkit.Must(t, sqllock.Transact(ctx, sqllock.PostgreSQL, db, nil, func(ctx context.Context, tx *sql.Tx) error {
		err := sqllock.LockTx(ctx, tx, sqllock.IntKey(1), &sqllock.LockTxOptions{Observe: telemetry.Lease})
		_, refused := locks.Lock(context.WithoutCancel(ctx), sqllock.IntKey(1), &sqllock.LockOptions{Wait: wait})
		if !errors.Is(refused, dibs.ErrHeld) {
			t.Errorf("a lock that a transaction has: %v", refused)
		}
		return err
	}))
	testkit.Must(t, sqllock.Transact(ctx, sqllock.SQLite, file, &sqllock.TransactOptions{Observe: telemetry.Lease}, func(context.Context, *sql.Tx) error {
		return nil
	}))
	root.End()

	read := map[string]string{}
	var all metricdata.ResourceMetrics
	testkit.Must(t, reader.Collect(t.Context(), &all))
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					read[m.Name] += fmt.Sprintf("%s:%d ", p.Attributes.Encoded(attribute.DefaultEncoder()), p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					outcome, _ := p.Attributes.Value("dibs.outcome")
					read[m.Name+" "+outcome.AsString()] = fmt.Sprint(p.Count)
					if outcome.AsString() == "held" && p.Sum < wait.Seconds() {
						t.Errorf("the wait that was over took %v s", p.Sum)
					}
				}
			}
		}
	}
	for name, want := range map[string]string{
		"dibs.claim.duration acquired": "3", "dibs.claim.duration held": "1", "dibs.lease.duration released": "2", "dibs.lease.active": ":0 ",
	} {
		if read[name] != want {
			t.Errorf("%s is %q; want %q; all: %v", name, read[name], want, read)
		}
	}
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name())
		if s.SpanContext().TraceID() != root.SpanContext().TraceID() {
			t.Errorf("%s belongs to another trace", s.Name())
		}
	}
	want := []string{
		"dibs.claim", "dibs.run", "dibs.settle", // the session
		"dibs.claim", "dibs.claim", // the transaction, and the session that gave up
		"dibs.claim", "dibs.run", "dibs.settle", // the file
		"root",
	}
	if !slices.Equal(names, want) {
		t.Errorf("spans %q; want %q", names, want)
	}
}
