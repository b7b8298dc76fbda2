package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
)

const (
	// pruneRows bounds the rows that one statement deletes, and sweepPages the pages of the
	// table of keys that one statement reads.
	pruneRows  = 10_000
	sweepPages = 32
)

// sweep deletes expired places and goes through the pages of the table of keys. It forgets
// keys that have not been in use for that long.
func (s *Store) sweep(age time.Duration) remote.Sweep {
	page := int64(-1) // the places come first
	return func(ctx context.Context, limit int) (removed int, keys []string, done bool, err error) {
		limit = min(limit, pruneRows)
		if page < 0 {
			// What the places delayed is done by the next transaction on the key, or below.
			tag, err := s.back.Exec(ctx, s.names.sql(`DELETE FROM @waiter WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM @waiter WHERE ends <= @now() LIMIT $1 FOR UPDATE SKIP LOCKED))`), pgx.QueryExecModeExec, limit)
			if removed = int(tag.RowsAffected()); err == nil && removed < limit {
				page = 0
			}
			return removed, nil, false, explain(err)
		}
		var next *int64
		var used [][]byte
		err = s.back.QueryRow(ctx, s.names.sql("SELECT next_page, used, records FROM @sweep($1, $2, $3, $4)"), pgx.QueryExecModeExec,
			page, sweepPages, engine.Micros(age), limit).Scan(&next, &used, &removed)
		if err != nil {
			return 0, nil, false, explain(err)
		}
		for _, k := range used {
			keys = append(keys, string(k))
		}
		if next != nil {
			page = *next
		}
		return removed, keys, next == nil, nil
	}
}

// takeSweep returns a sweep if it is this process's turn, else nil.
func (s *Store) takeSweep(ctx context.Context) (remote.Sweep, error) {
	tag, err := s.back.Exec(ctx, s.names.sql("UPDATE @meta SET swept = @now() WHERE swept < @now() - $1 OR swept > @now()"),
		pgx.QueryExecModeExec, engine.Micros(remote.SweepEvery))
	if err != nil || tag.RowsAffected() == 0 {
		return nil, explain(err)
	}
	return s.sweep(remote.SweepEvery), nil
}

// keepSweep keeps other processes from a sweep while this one is under way.
func (s *Store) keepSweep(ctx context.Context) error {
	_, err := s.back.Exec(ctx, s.names.sql("UPDATE @meta SET swept = @now()"), pgx.QueryExecModeExec)
	return explain(err)
}
