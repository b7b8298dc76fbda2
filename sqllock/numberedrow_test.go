package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestRowKeepsItsNumber: every row is numbered once, though its event fires many times at once and
// some of the transactions roll back.
func TestRowKeepsItsNumber(t *testing.T) {
	const rows, events = 5, 6
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, nil)
		b.must(t, "CREATE TABLE invoice (id BIGINT PRIMARY KEY, number BIGINT)")
		for id := range rows {
			b.must(t, "INSERT INTO invoice (id) VALUES ($1)", id)
		}
		type invoice struct {
			id     int64
			number sql.NullInt64
		}
		row := newRow(t, b.d, &RowOptions[invoice]{
			Select: b.sql("SELECT id, number FROM invoice WHERE id = $1"), MaxTries: 1000,
			Fields: func(i *invoice) []any { return []any{&i.id, &i.number} },
			Update: b.sql("UPDATE invoice SET number = $1 WHERE id = $2"),
			Values: func(i *invoice) []any { return []any{i.number, i.id} },
		})
		own := errors.New("rolled back")
		var all sync.WaitGroup
		for id := range rows {
			var mu sync.Mutex
			seen := map[int64]bool{}
			for event := range events {
				all.Go(func() {
					i, err := row.Update(t.Context(), b.DB, func(ctx context.Context, tx *sql.Tx, i *invoice) (err error) {
						if !i.number.Valid {
							i.number.Int64, err = s.Next(ctx, tx, "invoice")
							i.number.Valid = true
						}
						if err == nil && event%3 == 0 {
							return own
						}
						return err
					}, int64(id))
					if event%3 == 0 {
						if !errors.Is(err, own) {
							t.Errorf("an event that fails: %v", err)
						}
						return
					}
					testkit.Check(t, err)
					mu.Lock()
					defer mu.Unlock()
					if seen[i.number.Int64] = true; len(seen) > 1 {
						t.Errorf("invoice %d had the numbers %v", id, seen)
					}
				})
			}
		}
		all.Wait()
		b.checkInvoices(t, s, rows)
	})
}

// TestNoFunction: a call without a function is refused before a connection is asked for a lock.
func TestNoFunction(t *testing.T) {
	ctx, key := t.Context(), NameKey("a", "b")
	row := newRow(t, SQLite, (bench{database: database{d: SQLite}}).accountOptions())
	for call, do := range map[string]func() error{
		"Advisory.Do":    func() error { return new(Advisory).Do(ctx, key, nil, nil) },
		"Advisory.TryDo": func() error { return new(Advisory).TryDo(ctx, key, nil, nil) },
		"Named.Do":       func() error { return new(Named).Do(ctx, "a", nil, nil) },
		"Named.TryDo":    func() error { return new(Named).TryDo(ctx, "a", nil, nil) },
		"Transact":       func() error { return Transact(ctx, SQLite, nil, nil, nil) },
		"Row.Update": func() error {
			_, err := row.Update(ctx, nil, nil, 1)
			return err
		},
		"Row.UpdateOptimistic": func() error {
			_, err := row.UpdateOptimistic(ctx, nil, nil, 1)
			return err
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), call+" was given no function") {
			t.Errorf("%s without a function: %v", call, err)
		}
	}
}
