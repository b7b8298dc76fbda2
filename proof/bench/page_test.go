package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

const benchmarks = "../../docs/reference/benchmarks.md"

// TestPageHasEachComparison: docs/reference/benchmarks.md has a row of each comparison, with its goal.
func TestPageHasEachComparison(t *testing.T) {
	page := string(testkit.ReadFile(t, benchmarks))
	for _, c := range comparisons {
		if n := strings.Count(page, "\n| "+c.name+" | "+c.goal+" | **"); n != 1 {
			t.Errorf("%s has %d rows of %q with the goal %s", benchmarks, n, c.name, c.goal)
		}
	}
	rows := 0
	for _, part := range strings.Split(page, tableHead)[1:] {
		table, _, _ := strings.Cut(part, "\n\n")
		rows += strings.Count(table, "\n") + 1
	}
	if rows != len(comparisons) {
		t.Errorf("%s has %d rows of figures; there are %d comparisons", benchmarks, rows, len(comparisons))
	}
}

// TestPageIsWritten: a run replaces the tables whose comparisons it measured, and the sentence above
// each. A table of which it measured a part stays.
func TestPageIsWritten(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	before := string(testkit.ReadFile(t, benchmarks))
	testkit.Must(t, os.WriteFile(page, []byte(before), 0o644))
	r := newReport(t.Output(), config{rounds: 3})
	for _, c := range comparisons {
		if c.group == "jobs" || c.group == "redis" {
			r.add(c, figure{value: []float64{2, 4, 3}, unit: "ms", detail: "measured now"})
		}
	}
	testkit.Must(t, r.write(page))
	after := string(testkit.ReadFile(t, page))
	var was, is []string // the lines that differ
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	if len(a) != len(b) {
		t.Fatalf("the page had %d lines and has %d", len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] {
			was, is = append(was, a[i]), append(is, b[i])
		}
	}
	if len(is) != 3 || is[0] != r.head || nameOf(is[1]) != nameOf(was[1]) || nameOf(is[2]) != nameOf(was[2]) ||
		!strings.HasSuffix(is[1], " | **3 ms** | 2 … 4 | measured now |") || !strings.Contains(was[1], "River") {
		t.Errorf("in the place of\n%s\nis\n%s", strings.Join(was, "\n"), strings.Join(is, "\n"))
	}
}

// TestChoose: -only takes groups and parts of names, with commas.
func TestChoose(t *testing.T) {
	count := func(of func(comparison) bool) (n int) {
		for _, c := range comparisons {
			if of(c) {
				n++
			}
		}
		return n
	}
	in := func(groups ...string) int {
		return count(func(c comparison) bool { return slices.Contains(groups, c.group) })
	}
	for only, want := range map[string]int{
		"":                                len(comparisons),
		"sqllock":                         in("sqllock"),
		"memory,sqllock":                  in("memory", "sqllock"),
		"sqllock,memory,sqllock":          in("memory", "sqllock"),
		"sqllock,fairness of nobody":      0,
		"Redis hand-over":                 2,
		"Redis hand-over, 2 waiters: p50": 1,
		"Redis hand-over,sqllock":         2 + in("sqllock"),
		"Redis round trips of a replay":   1,
		"nosuch":                          0,
		"memory,nosuch":                   0,
		"memory,":                         0,
		"MEMORY":                          0,
	} {
		chosen, err := choose(only)
		if len(chosen) != want || (err != nil) != (want == 0) {
			t.Errorf("%q chooses %d comparisons, want %d: %v", only, len(chosen), want, err)
		}
	}
}

// TestRefuses: what measures nothing ends with an error, before anything is measured.
func TestRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"-only nosuch":        `only: "nosuch" is neither a group nor a part of a name; the groups are memory, sqlite, redis,`,
		"-only memory,nosuch": `only: "nosuch" is neither`,
		"memory":              `"memory" is not a flag`,
		"-rounds 0":           "0 rounds of",
		"-rounds 1 -round 0s": "1 rounds of 0s",
	} {
		if err := run(t.Context(), strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", args, err, want)
		}
	}
}

// TestPace: the announcement counts both sides of each round, and the line knows what is left from
// what the comparisons before it took.
func TestPace(t *testing.T) {
	c := config{rounds: 15, round: 700 * time.Millisecond}
	if got, want := c.announcement(30), "30 comparisons of 15 rounds take at least 11m12s, and the servers' starts\n"; got != want {
		t.Errorf("it says %q; want %q", got, want)
	}
	for want, got := range map[string]string{
		"1 of 30: first":                       pace(0, 30, "first", 0),
		"11 of 30, about 20m0s left: eleventh": pace(10, 30, "eleventh", 10*time.Minute),
		"30 of 30, about 1m0s left: the last":  pace(29, 30, "the last", 29*time.Minute),
	} {
		if got != want {
			t.Errorf("the line is %q; want %q", got, want)
		}
	}
}

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
