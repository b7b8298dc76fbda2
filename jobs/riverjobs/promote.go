package riverjobs

import (
	"context"
	_ "embed"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/promote.sql
var promoteSQL string

//go:embed sql/keys.sql
var keysSQL string

const (
	defaultSweep   = time.Second
	sweepShare     = 10 // the sweep may use a tenth of the time
	statementLimit = 5 * time.Second
	statementKeys  = 500 // keys in one statement
	logEvery       = time.Minute
	// patienceSlack is how much longer than Patience a living worker may need to requeue a job.
	patienceSlack = 30 * time.Second
)

// in fills the schema into a statement.
func in(schema, statement string) string {
	if schema != "" {
		schema = pgx.Identifier{schema}.Sanitize() + "."
	}
	return strings.ReplaceAll(statement, "@", schema)
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// query returns the first column of a statement's rows.
func query[T any](ctx context.Context, m *Mutex, by querier, statement string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	rows, _ := by.Query(ctx, in(m.schema, statement), args...) // CollectRows returns the error
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// promote makes the next jobs of the keys runnable. It ignores each key's jobs up to the
// ID in after. With tickets, it changes only their jobs. It returns the IDs of the jobs
// that it made runnable.
func (m *Mutex) promote(ctx context.Context, by querier, keys []string, after []int64, tickets []string) ([]int64, error) {
	o := &m.options.Jobs
	return query[int64](ctx, m, by, promoteSQL, keys, after, o.Ahead, o.Permits, m.keeps, tickets, m.schema, (m.options.Patience + patienceSlack).Seconds())
}

// promoteAll promotes keys, in several statements.
func (m *Mutex) promoteAll(ctx context.Context, finished map[string]int64) error {
	for keys := range slices.Chunk(slices.Collect(maps.Keys(finished)), statementKeys) {
		after := make([]int64, len(keys))
		for i, key := range keys {
			after[i] = finished[key]
		}
		if _, err := m.promote(ctx, m.pool, keys, after, nil); err != nil {
			return err
		}
	}
	return nil
}

// sweep promotes all keys that have parked jobs.
func (m *Mutex) sweep(ctx context.Context) error {
	m.mu.Lock()
	kinds := slices.Collect(maps.Keys(m.keys))
	m.mu.Unlock()
	keys, err := query[string](ctx, m, m.pool, keysSQL, kinds)
	if err != nil {
		return err
	}
	finished := make(map[string]int64, len(keys))
	for _, key := range keys {
		finished[key] = 0
	}
	return m.promoteAll(ctx, finished)
}

// promoteSoon promotes a key in the background. Its jobs up to the ID are finished. If
// the process ends first, the sweep of another process does it.
func (m *Mutex) promoteSoon(key string, after int64) {
	m.mu.Lock()
	m.finished[key] = max(m.finished[key], after)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run promotes until ctx ends. Jobs that finish during a statement are in the next one.
func (m *Mutex) run(ctx context.Context, sweepEvery time.Duration) {
	timer := time.NewTimer(sweepEvery)
	defer timer.Stop()
	var logged time.Time
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			m.mu.Lock()
			finished := m.finished
			m.finished = map[string]int64{}
			m.mu.Unlock()
			err = m.promoteAll(ctx, finished)
		case <-timer.C:
			began := time.Now()
			err = m.sweep(ctx)
			timer.Reset(max(sweepEvery, sweepShare*time.Since(began)))
		}
		if err != nil && ctx.Err() == nil && time.Since(logged) > logEvery {
			logged = time.Now()
			m.options.Jobs.Logger.WarnContext(ctx, "dibs: parked jobs could not be made runnable; trying again every second", "error", err)
		}
	}
}
