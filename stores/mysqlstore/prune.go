package mysqlstore

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/dibs-go/dibs/store/remote"
)

const (
	// forgetKeys bounds the keys that one transaction forgets, and sweepKeys the keys that one
	// step of a sweep reads.
	forgetKeys = 128
	sweepKeys  = 512
)

// sweep goes through the keys in their order. It forgets keys that are not in use and whose
// fence is at most safe: every claim knows that the mark is above that.
func (s *Store) sweep(safe int64) remote.Sweep {
	var last string
	var high int64 // the highest fence above the clock of a key that is not in use
	return func(ctx context.Context, _ int) (removed int, used []string, done bool, err error) {
		var idle []string
		rows := 0
		find := s.script()
		find.raw("SELECT k,fence," + clock + "," + free + ",busy=1 OR token<>'' AND ends<=" + clock + " OR rec_ends>0 AND rec_ends<=" + clock)
		find.raw(" FROM @key FORCE INDEX (PRIMARY) WHERE k>").value(last).raw(" ORDER BY k LIMIT ").value(int64(sweepKeys))
		k := last
		find.asks(func(r *reading) {
			var fence, now int64
			var unused, expired bool
			r.scan(&k, &fence, &now, &unused, &expired)
			rows++
			switch {
			case unused && fence <= safe:
				idle = append(idle, k)
			case unused && fence > now:
				high = max(high, fence) // the clock was set back
			case expired:
				used = append(used, k)
			}
		})
		if err := find.on(ctx, s.back); err != nil {
			return 0, nil, false, explain(err)
		}
		for some := range slices.Chunk(idle, forgetKeys) {
			if err := s.forget(ctx, some, safe); err != nil {
				return 0, nil, false, err
			}
		}
		last, done = k, rows < sweepKeys
		if done && high > 0 {
			err = s.raise(ctx, high)
		}
		return 0, used, done, err
	}
}

// takeSweep returns a sweep if it is this process's turn, else nil. It raises the mark to the
// time when the sweep begins. When the next sweep begins, every claim knows that mark.
func (s *Store) takeSweep(ctx context.Context) (remote.Sweep, error) {
	var safe int64
	mine := false
	const every = int64(remote.SweepEvery / time.Microsecond)
	look := s.script()
	look.raw(begins).done()
	look.raw("SELECT fence,swept<=" + clock + "-").value(every).raw(" FROM @meta FOR UPDATE").asks(func(r *reading) { r.scan(&safe, &mine) })
	// A clock that was set back begins anew.
	look.raw("UPDATE @meta SET fence=GREATEST(fence," + clock + "),swept=" + clock + " WHERE swept<=" + clock + "-").value(every)
	look.raw(" OR swept>" + clock).done()
	look.raw("COMMIT;" + ends).done()
	err := look.on(ctx, s.back)
	if err != nil || !mine {
		return nil, explain(err)
	}
	return s.sweep(safe), nil
}

// keepSweep keeps other processes from a sweep while this one is under way. It leaves the mark
// as it is, so that the next sweep knows it as every claim does.
func (s *Store) keepSweep(ctx context.Context) error { return s.raise(ctx, 0) }

// forget deletes rows of keys that are not in use.
func (s *Store) forget(ctx context.Context, keys []string, safe int64) error {
	return try(ctx, func() error {
		return use(ctx, s.back, func(c *sql.Conn) error {
			var found []string
			lock, last := s.script(), s.script()
			lock.raw(begins).done()
			in(lock.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k"), keys).raw(" AND " + free + " AND fence<=").value(safe)
			lock.raw(" ORDER BY k FOR UPDATE SKIP LOCKED").asks(func(r *reading) {
				found = append(found, "")
				r.scan(&found[len(found)-1])
			})
			if err := lock.run(ctx, c); err != nil {
				return err
			}
			in(last.raw("DELETE FROM @key WHERE k"), found).done()
			return last.raw("COMMIT;"+ends).done().run(ctx, c)
		})
	})
}

// raise raises the mark. The next sweep begins no sooner than if this one had begun now, because
// claims that do not know the mark must have ended by then.
func (s *Store) raise(ctx context.Context, fence int64) error {
	up := s.script()
	up.raw("UPDATE @meta SET fence=GREATEST(fence,").value(fence).raw("),swept=" + clock).done()
	return explain(up.on(ctx, s.back))
}
