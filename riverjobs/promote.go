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
	sweepShare     = 10 // the sweep runs for at most a tenth of the time
	statementLimit = 5 * time.Second
	statementKeys  = 500 // that one statement promotes for
	complainEvery  = time.Minute
)

// in returns a statement for River's table in that schema.
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

// query returns the one column of a statement's rows.
func query[T any](ctx context.Context, m *Mutex, by querier, statement string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	rows, _ := by.Query(ctx, in(m.schema, statement), args...) // CollectRows returns the error
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// promote makes the next jobs of keys runnable, whose jobs up to the IDs after do not count. With
// tickets it touches only their jobs. It returns the IDs of the jobs that it made runnable.
func (m *Mutex) promote(ctx context.Context, by querier, keys []string, after []int64, tickets []string) ([]int64, error) {
	o := &m.options.Jobs
	return query[int64](ctx, m, by, promoteSQL, keys, after, o.Ahead, o.Permits, m.keeps, tickets, m.schema)
}

// promoteAll promotes for keys, with the IDs after which jobs count.
func (m *Mutex) promoteAll(ctx context.Context, over map[string]int64) error {
	for keys := range slices.Chunk(slices.Collect(maps.Keys(over)), statementKeys) {
		after := make([]int64, len(keys))
		for i, key := range keys {
			after[i] = over[key]
		}
		if _, err := m.promote(ctx, m.pool, keys, after, nil); err != nil {
			return err
		}
	}
	return nil
}

// sweep promotes for all keys that have parked jobs of the Mutex's kinds.
func (m *Mutex) sweep(ctx context.Context) error {
	m.mu.Lock()
	kinds := slices.Collect(maps.Keys(m.keys))
	m.mu.Unlock()
	keys, err := query[string](ctx, m, m.pool, keysSQL, kinds)
	if err != nil {
		return err
	}
	over := make(map[string]int64, len(keys))
	for _, key := range keys {
		over[key] = 0
	}
	return m.promoteAll(ctx, over)
}

// promoteSoon promotes in the background for a key whose jobs up to that ID are over, or do not count. If the
// process ends before that, the sweep of another one does it.
func (m *Mutex) promoteSoon(key string, after int64) {
	m.mu.Lock()
	m.over[key] = max(m.over[key], after)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run promotes until ctx ends. What is over while a statement runs is in the next one.
func (m *Mutex) run(ctx context.Context, sweepEvery time.Duration) {
	timer := time.NewTimer(sweepEvery)
	defer timer.Stop()
	var complained time.Time
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			m.mu.Lock()
			over := m.over
			m.over = map[string]int64{}
			m.mu.Unlock()
			err = m.promoteAll(ctx, over)
		case <-timer.C:
			began := time.Now()
			err = m.sweep(ctx)
			timer.Reset(max(sweepEvery, sweepShare*time.Since(began)))
		}
		if err != nil && ctx.Err() == nil && time.Since(complained) > complainEvery {
			complained = time.Now()
			m.options.Jobs.Logger.WarnContext(ctx, "dibs: parked jobs cannot be made runnable; trying again each second", "error", err)
		}
	}
}
