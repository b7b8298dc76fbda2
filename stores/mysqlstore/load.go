package mysqlstore

import (
	"context"
	"database/sql"

	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storekit"
)

const (
	keyColumns    = "k," + engine.RowColumns
	holderColumns = "k," + engine.LeaseColumns
	waiterColumns = "k," + engine.PlaceColumns

	// clock is the server's time when a statement begins, in microseconds since 1970.
	clock = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01 00:00:00',UTC_TIMESTAMP(6))"
)

// work is a transaction on some keys: it loads them, do changes them, and it writes the
// difference. A poll takes one round trip, because it ends its transaction at once.
func (s *Store) work(ctx context.Context, how remote.Load, b *engine.Batch, do func()) error {
	db, open := s.front, begins
	switch how {
	case remote.Locking, remote.Passing:
		db = s.back
	case remote.Looking:
		open = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;SET SESSION wait_timeout=5;START TRANSACTION READ ONLY"
	case remote.Polling:
		db, open = s.polls, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;START TRANSACTION READ ONLY"
	}
	return use(ctx, db, func(c *sql.Conn) error {
		for begun := false; ; begun = how != remote.Polling {
			ask := s.script()
			if !begun {
				ask.raw(open).done()
			}
			ok := false
			if loadBatch(ask, b, how, &ok); how == remote.Polling {
				ask.raw("COMMIT").done()
			}
			if err := ask.run(ctx, c); err != nil {
				return err
			}
			if !ok {
				return errNoMeta
			}
			if how == remote.Passing {
				b.Locked()
			}
			if do(); !b.Short() {
				break
			}
		}
		if how == remote.Polling {
			return nil
		}
		last := s.script()
		write(last, b.Changes())
		return last.raw("COMMIT;"+ends).done().run(ctx, c)
	})
}

// loadBatch writes the statements that lock and read the rows of the keys, and what belongs to
// them. It sets ok if @meta has its row.
func loadBatch(s *script, b *engine.Batch, how remote.Load, ok *bool) {
	b.Begin()
	if how == remote.Creating {
		s.raw("INSERT INTO @key (k,fence) VALUES ")
		for i, k := range b.Keys {
			if i > 0 {
				s.raw(",")
			}
			s.row(k, int64(0))
		}
		s.raw(" ON DUPLICATE KEY UPDATE fence=fence").done()
	}
	in(s.raw("SELECT "+keyColumns+" FROM @key FORCE INDEX (PRIMARY) WHERE k"), b.Keys).raw(" ORDER BY k")
	switch how {
	case remote.Creating, remote.Locking:
		s.raw(" FOR UPDATE")
	case remote.Passing:
		s.raw(" FOR UPDATE SKIP LOCKED")
	}
	var k string
	s.asks(func(r *reading) {
		var w engine.Row
		r.scan(&k).scan(w.Fields()...)
		b.AddRow(k, w)
	})
	// The mark is read after the rows were made, because it is raised before a row is deleted.
	s.raw("SET @N=" + clock).done()
	s.raw("SELECT @N,fence FROM @meta").asks(func(r *reading) {
		var now, mark int64
		r.scan(&now, &mark)
		b.Now(now, now, mark)
		*ok = true
	})
	in(s.raw("SELECT "+holderColumns+" FROM @holder FORCE INDEX (PRIMARY) WHERE k"), b.Keys).raw(" ORDER BY k,ends").asks(func(r *reading) {
		var l engine.Lease
		r.scan(&k).scan(l.Fields()...)
		b.AddLease(k, l)
	})
	in(s.raw("SELECT k,fence FROM @progress WHERE k"), b.Keys).asks(func(r *reading) {
		var fence int64
		r.scan(&k, &fence)
		b.AddSaved(k, fence)
	})
	for _, k := range b.Keys {
		readQueue(s, b, k)
	}
}

// readQueue reads the first places of a queue, the last place, and the places of the tokens in
// Wants.
func readQueue(s *script, b *engine.Batch, k string) {
	part := func(n, end string) {
		s.raw("(SELECT " + n + "," + waiterColumns + " FROM @waiter WHERE k=").value(k).raw(end)
	}
	part("1", " ORDER BY seq LIMIT ")
	s.value(b.Limit).raw(") UNION ALL ")
	part("0", " ORDER BY seq DESC LIMIT 1)")
	if wants := b.Wants[k]; len(wants) > 0 {
		s.raw(" UNION ALL ")
		part("0", " AND token")
		in(s, wants).raw(")")
	}
	s.asks(func(r *reading) {
		var first bool
		var k string
		var p engine.Place
		r.scan(&first, &k).scan(p.Fields()...)
		b.AddPlace(k, first, p)
	})
}

// list returns keys.
func (s *Store) list(ctx context.Context, part storekit.Part, first, last string, limit int) (keys []string, err error) {
	ask := s.script()
	some := func(from, which string) *script {
		ask.raw("(SELECT DISTINCT k FROM " + from + " WHERE k>=").value(first).raw(" AND k<=").value(last)
		return ask.raw(which + " ORDER BY k LIMIT ").value(int64(limit)).raw(")")
	}
	switch part {
	case storekit.Live: // a key with a place or an abandoned lease may have no lease
		some("@key FORCE INDEX (listed)", " AND listed=1 AND token>''").raw(" UNION ")
		some("@holder FORCE INDEX (PRIMARY)", "").raw(" UNION ")
		some("@waiter FORCE INDEX (PRIMARY)", "").raw(" ORDER BY k LIMIT ").value(int64(limit))
	case storekit.Kept:
		some("@key FORCE INDEX (PRIMARY)", " AND rec_ends>0")
	default:
		some("@key FORCE INDEX (PRIMARY)", "")
	}
	ask.asks(func(r *reading) {
		keys = append(keys, "")
		r.scan(&keys[len(keys)-1])
	})
	return keys, ask.on(ctx, s.front)
}

// stuck returns which of the keys another transaction has locked.
func (s *Store) stuck(ctx context.Context, keys []string) (map[string]bool, error) {
	stuck := map[string]bool{}
	ask := s.script()
	var k string
	in(ask.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k"), keys)
	ask.asks(func(r *reading) { r.scan(&k); stuck[k] = true })
	in(ask.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k"), keys).raw(" ORDER BY k FOR UPDATE SKIP LOCKED")
	ask.asks(func(r *reading) { r.scan(&k); delete(stuck, k) })
	err := ask.on(ctx, s.back)
	return stuck, explain(err)
}
